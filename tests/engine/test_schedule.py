"""Properties of the reading order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from simulated_machines import CONFIG, OLMOE

from estream.engine.schedule import ReadCursor, plan_reading
from estream.engine.use import ExpectedUse
from estream.host.sizes import MiB
from estream.package.manifest import Page

TAPE = OLMOE.tape


def _drain(cursor: ReadCursor) -> list[Page]:
    pages = []
    while (page := cursor.peek()) is not None:
        pages.append(page)
        cursor.pop()
    return pages


EXPERT_SETS = st.frozensets(st.integers(0, 63), min_size=8)


@given(EXPERT_SETS, EXPERT_SETS, st.integers(0, 16 * MiB), st.booleans())
def test_every_needed_page_is_read_once_and_before_its_successors(used, prefetched, early: int, speculative: bool):
    schedule = plan_reading(CONFIG, TAPE, frozenset(), ExpectedUse(np.full((16, 64), 1.0 if speculative else 0.1)), 0.9, early)
    cursor = ReadCursor(schedule)
    read = _drain(cursor)
    for layer in range(CONFIG.layers):
        of_layer = {p.spec.expert for p in read if p.spec.layer == layer and p.spec.kind == "expert"}
        if layer in (0, 15) or speculative:
            assert of_layer == (set(range(64)) if speculative and layer < 15 else set())
        else:
            assert of_layer == prefetched
        # What a layer computes with before its routing is known has been read by now.
        assert {("attention", layer), ("router", layer)} <= {(p.spec.kind, p.spec.layer) for p in read}
        cursor.routed(layer, used)
        read += _drain(cursor)
        if layer + 1 in schedule.prefetch_layers:
            assert ("router", layer + 1) in {(p.spec.kind, p.spec.layer) for p in read}
            cursor.prefetch(layer + 1, prefetched)
            read += _drain(cursor)
        assert used <= {p.spec.expert for p in read if p.spec.layer == layer}
    assert len({p.index for p in read}) == len(read)
    needed = {p.index for p in TAPE if p.spec.kind != "expert" or p.spec.expert in used}
    unneeded = {p.index for p in read} - needed
    assert all(TAPE[i].spec.kind == "expert" and TAPE[i].spec.layer < 15 for i in unneeded)
    if speculative:
        body = [p.index for p in read if p.spec.kind != "head"]
        assert body == sorted(body)
    else:
        layers = CONFIG.layers - 2
        assert cursor.stats.prefetched == layers * len(prefetched)
        assert cursor.stats.used == layers * len(used & prefetched)
    last = next(i for i, p in enumerate(read) if p.spec.kind == "expert" and p.spec.layer == 15)
    assert sum(p.padded_bytes for p in read[:last] if p.spec.kind == "head") <= early


def test_pages_that_are_resident_are_not_read():
    cursor = ReadCursor(plan_reading(CONFIG, TAPE, frozenset(range(66)), ExpectedUse(np.ones((16, 64))), 0.9, 0))
    assert cursor.peek() is TAPE[66]


@given(EXPERT_SETS, EXPERT_SETS, st.frozensets(st.integers(0, 63)))
def test_sure_experts_are_read_ahead_of_their_routing_and_others_after_it(used, prefetched, sure):
    chances = np.tile(np.isin(np.arange(64), list(sure)) * 0.85 + 0.1, (16, 1))
    cursor = ReadCursor(plan_reading(CONFIG, TAPE, frozenset(), ExpectedUse(chances), 0.9, 0))
    read = _drain(cursor)
    named = len(sure) * 0.95 < 0.5 * chances[0].sum()
    for layer in range(15):
        of_layer = {p.spec.expert for p in read if p.spec.layer == layer and p.spec.kind == "expert"}
        # What the layers before showed may change what counts as sure, but not make it more than was named or is sure.
        assert of_layer <= sure | (prefetched if named and layer else frozenset())
        if layer == 0 or not named:
            assert layer > 0 or of_layer == sure
        cursor.routed(layer, used)
        read += _drain(cursor)
        assert used <= {p.spec.expert for p in read if p.spec.layer == layer and p.spec.kind == "expert"}
        if layer + 1 in cursor.schedule.prefetch_layers:
            cursor.prefetch(layer + 1, prefetched)
            read += _drain(cursor)
    assert len({p.index for p in read}) == len(read)


def test_a_batch_of_fewer_experts_than_expected_is_noticed():
    """All looked sure. The first layers use a quarter of their experts; soon nothing is read ahead of its routing."""
    cursor = ReadCursor(plan_reading(CONFIG, TAPE, frozenset(), ExpectedUse(np.full((16, 64), 0.95)), 0.9, 0))
    read: list[Page] = []
    for layer in range(15):
        # The ring has room for no more than a layer.
        while (page := cursor.peek()) is not None and page.spec.layer <= layer:
            read.append(page)
            cursor.pop()
        cursor.routed(layer, frozenset(range(16)))
    read += _drain(cursor)
    useless = {p.spec.layer for p in read if p.spec.kind == "expert" and p.spec.expert >= 16 and p.spec.layer < 15}
    assert useless <= {0, 1, 2}
