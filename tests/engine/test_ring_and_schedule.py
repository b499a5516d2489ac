"""Properties of the ring and of the reading order."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estream.engine.memory import ArenaPlan, divide_arena, plan_arena, smallest_ring
from estream.engine.options import Configuration
from estream.engine.ring import Place, Ring
from estream.engine.schedule import ReadSchedule
from estream.host.sizes import GiB, MiB
from estream.models import olmoe
from estream.models.published_shapes import SHAPES
from estream.package.layout import Quantization, build_tape
from estream.package.manifest import Page


def _tape() -> tuple[Page, ...]:
    offset, pages = 0, []
    for index, spec in enumerate(build_tape(CONFIG, Quantization.choose(CONFIG, 4, 8, 64))):
        pages.append(Page(index, spec, offset, 0))
        offset += pages[-1].padded_bytes
    return tuple(pages)


CONFIG = olmoe.read_config(SHAPES["olmoe-1b-7b"])
TAPE = _tape()


@given(st.integers(8, 64), st.lists(st.tuples(st.integers(1, 8), st.integers(0, 5)), max_size=200))
def test_places_never_overlap_and_an_empty_ring_takes_anything(size: int, steps: list[tuple[int, int]]):
    ring, live = Ring(size), []
    for want, free in steps:
        place = ring.take(want)
        if place is None:
            assert live
        else:
            assert place.offset >= 0
            assert place.offset + place.size <= size
            assert all(place.offset + place.size <= p.offset or p.offset + p.size <= place.offset for p in live)
            live.append(place)
        if live and free < len(live):
            ring.give_back(live.pop(free))
        assert ring.used == sum(p.size for p in live)
    for place in live:
        ring.give_back(place)
    assert ring.take(size) == Place(0, size)


@given(st.integers(20, 60), st.lists(st.integers(1, 8), min_size=2, max_size=60), st.data())
def test_one_place_held_for_long_leaves_half_of_the_rest_contiguous(size: int, wants: list[int], data):
    """Whatever came and went beside a page that is held, the largest page finds room in a ring of twice its size."""
    ring, held, live = Ring(size), None, []
    for want in wants:
        place = ring.take(want)
        if place is None:
            if not live:
                break
            ring.give_back(live.pop(data.draw(st.integers(0, len(live) - 1))))
        elif held is None:
            held = place
        else:
            live.append(place)
    for place in live:
        ring.give_back(place)
    assert ring.take((size - held.size) // 2) is not None


def test_a_place_is_given_back_once():
    ring = Ring(4)
    place = ring.take(4)
    ring.give_back(place)
    with pytest.raises(ValueError, match="twice"):
        ring.give_back(place)
    with pytest.raises(ValueError, match="does not fit"):
        ring.take(5)


def _drain(schedule: ReadSchedule) -> list[Page]:
    pages = []
    while (page := schedule.peek()) is not None:
        pages.append(page)
        schedule.pop()
    return pages


EXPERT_SETS = st.frozensets(st.integers(0, 63), min_size=8)


@given(EXPERT_SETS, EXPERT_SETS, st.integers(0, 16 * MiB), st.booleans())
def test_every_needed_page_is_read_once_and_before_its_successors(used, predicted, early: int, speculative: bool):
    schedule = ReadSchedule(CONFIG, TAPE, frozenset(), speculative, early)
    read = _drain(schedule)
    for layer in range(CONFIG.layers):
        of_layer = {p.spec.expert for p in read if p.spec.layer == layer and p.spec.kind == "expert"}
        if layer in (0, 15) or schedule.speculative:
            assert of_layer == (set(range(64)) if schedule.speculative and layer < 15 else set())
        else:
            assert of_layer == predicted
        # What a layer computes with before its routing is known has been read by now.
        assert {("attention", layer), ("router", layer)} <= {(p.spec.kind, p.spec.layer) for p in read}
        schedule.routed(layer, used)
        read += _drain(schedule)
        if schedule.predicts(layer + 1):
            assert ("router", layer + 1) in {(p.spec.kind, p.spec.layer) for p in read}
            schedule.predict(layer + 1, predicted)
            read += _drain(schedule)
        assert used <= {p.spec.expert for p in read if p.spec.layer == layer}
    assert len({p.index for p in read}) == len(read)
    needed = {p.index for p in TAPE if p.spec.kind != "expert" or p.spec.expert in used}
    unneeded = {p.index for p in read} - needed
    assert all(TAPE[i].spec.kind == "expert" and TAPE[i].spec.layer < 15 for i in unneeded)
    if schedule.speculative:
        body = [p.index for p in read if p.spec.kind != "head"]
        assert body == sorted(body)
    else:
        layers = CONFIG.layers - 2
        assert schedule.prediction.predicted == layers * len(predicted)
        assert schedule.prediction.right == layers * len(used & predicted)
    last = next(i for i, p in enumerate(read) if p.spec.kind == "expert" and p.spec.layer == 15)
    assert sum(p.padded_bytes for p in read[:last] if p.spec.kind == "head") <= early


def test_pages_that_are_resident_are_not_read():
    schedule = ReadSchedule(CONFIG, TAPE, frozenset(range(66)), True, 0)
    assert schedule.peek() is TAPE[66]


BOUNDS = st.none() | st.integers(0, 5 * GiB)


@given(st.integers(64 * MiB, 8 * GiB), st.integers(0, 300 * MiB), st.integers(1, 300 * MiB), st.integers(0, GiB), BOUNDS)
def test_an_arena_never_exceeds_its_capacity_and_pins_runs(capacity: int, usual: int, activations: int, ring: int, bound):
    usual = min(usual, capacity - smallest_ring(TAPE) - 4 * MiB)
    activations = min(activations, capacity - smallest_ring(TAPE) - 4 * MiB)
    plan = plan_arena(TAPE, capacity, max(0, usual), Configuration(ring_bytes=ring, pinned_bytes=bound))
    assert plan.bytes <= capacity
    assert bound is None or plan.pinned_bytes <= bound
    assert plan.everything_pinned == (len(plan.pinned) == len(TAPE))
    if not plan.everything_pinned and plan.pinned:
        assert plan.bytes - usual - plan.pinned_bytes >= ring
        for layer in range(CONFIG.layers):
            indices = [p.index for p in TAPE if p.spec.layer == layer]
            pinned = [i for i in indices if i in plan.pinned]
            assert pinned == indices[: len(pinned)]
    layout = divide_arena(plan, TAPE, max(1, activations))
    assert layout.ring_offset + layout.ring_bytes <= layout.activations_offset <= plan.bytes - max(1, activations)
    assert layout.ring_bytes <= max(ring, smallest_ring(TAPE))
    still_pinned = [i for i, at in plan.pinned.items() if at + TAPE[i].padded_bytes <= layout.ring_offset]
    assert len(still_pinned) == len(TAPE) or layout.ring_bytes >= smallest_ring(TAPE)


def test_a_plan_is_a_value():
    plan = plan_arena(TAPE, GiB, 0, Configuration())
    assert replace(plan) == plan
    assert isinstance(plan, ArenaPlan)
