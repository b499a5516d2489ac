"""Properties of the reading order."""

from hypothesis import given
from hypothesis import strategies as st
from simulated_machines import CONFIG, OLMOE

from estream.engine.schedule import ReadSchedule
from estream.host.sizes import MiB
from estream.package.manifest import Page

TAPE = OLMOE.tape


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
