"""Who lies where when: the native reader and the pager over pages whose bytes say which page they are."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tagged_pages import SweepCase, TaggedModel, TaggedSweeps, make_model

from estream.errors import CancelledError, ReadError
from estream.host.sizes import KiB, MiB

SMALL = {"attention": 200 * KiB, "router": 20 * KiB, "shared": 50 * KiB, "expert": 100 * KiB, "head": 150 * KiB}
UNEVEN = {"attention": 500 * KiB, "router": 70 * KiB, "shared": 10 * KiB, "expert": 40 * KiB, "head": 300 * KiB}
KINDS = {
    "plain": (4, 6, (), SMALL),
    "dense first layer": (4, 12, (0,), UNEVEN),
    "large experts": (5, 4, (2,), SMALL | {"expert": 600 * KiB}),
    "two layers": (2, 8, (), UNEVEN),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TaggedModel]:
    folder = tmp_path_factory.mktemp("tagged")
    return {name: make_model(folder / f"{name}.bin", *kind) for name, kind in KINDS.items()}


@st.composite
def cases(draw: st.DrawFn, sweeps: int):
    """Keyword arguments of TaggedSweeps, and plans for sweeps."""
    kind = draw(st.sampled_from(list(KINDS)))
    layers, experts, dense, _ = KINDS[kind]
    pages = 4 + sum(4 + (0 if layer in dense else 2 * experts) for layer in range(layers))
    some = st.frozensets(st.integers(0, experts - 1), min_size=1)
    plans = []
    for _ in range(sweeps):
        used, prefetched = (draw(st.lists(some, min_size=layers, max_size=layers)) for _ in range(2))
        plans.append(SweepCase(used, prefetched, draw(st.booleans())))
    few, share = random.Random(draw(st.integers(0, 99))), draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]))
    arguments = {
        "pinned": frozenset(i for i in range(pages) if few.random() < share),
        "spare": draw(st.sampled_from([0, 64 * KiB, 320 * KiB, 2 * MiB, 16 * MiB])),
        "lanes": draw(st.integers(1, 6)),
        "request_bytes": draw(st.sampled_from([4 * KiB, 64 * KiB, 256 * KiB, 2 * MiB])),
    }
    return kind, arguments, plans


def _needed(model: TaggedModel, plan: SweepCase) -> list[int]:
    return [p.index for p in model.tape if p.spec.kind != "expert" or p.spec.expert in plan.used[p.spec.layer]]


@settings(max_examples=30)
@given(case=cases(sweeps=3))
def test_a_page_is_whole_when_lent_and_nobody_writes_to_it_until_it_comes_back(models, case):
    kind, arguments, plans = case
    model, sweeps = models[kind], TaggedSweeps(models[kind], **arguments)
    for plan in plans:
        before, resident = sweeps.reader.stats()[0], sweeps.pager.resident
        assert sorted(sweeps.sweep(plan)) == _needed(model, plan)
        sweeps.check_resident()
        unread = sum(p.padded_bytes for p in model.tape if p.index not in resident)
        assert sweeps.reader.stats()[0] - before <= unread


class DeviceError(Exception):
    """What a device may fail with."""


@settings(max_examples=25)
@given(case=cases(sweeps=3), call=st.integers(0, 30), cancelled=st.booleans())
def test_after_a_failed_or_cancelled_sweep_no_lane_writes_and_what_is_kept_is_whole(models, case, call: int, cancelled: bool):
    kind, arguments, (first, second, third) = case
    model, sweeps = models[kind], TaggedSweeps(models[kind], **arguments)
    stopped = CancelledError if cancelled else DeviceError

    def stop(now: int) -> None:
        if now == call and cancelled:
            sweeps.reads.cancel()
        elif now == call:
            raise DeviceError

    for plan in (first, second):
        try:
            seen = sweeps.sweep(plan, stop)
        except stopped:
            assert sweeps.ring_is_left_alone(0.002)
            sweeps.check_resident()
        else:
            # There were fewer calls, or nothing came after the one at which it was cancelled.
            assert sorted(seen) == _needed(model, plan)
    assert sorted(sweeps.sweep(third)) == _needed(model, third)


@settings(max_examples=20)
@given(case=cases(sweeps=2), where=st.floats(0, 1, exclude_max=True))
def test_a_damaged_page_is_never_lent(models, case, where: float):
    kind, arguments, (first, second) = case
    model, sweeps = models[kind], TaggedSweeps(models[kind], **arguments)
    index = int(where * len(model.tape))
    model.damage(index)
    try:
        if index in _needed(model, first):
            with pytest.raises(ReadError, match=rf"{model.tape[index].spec} at offset .*: wrong checksum"):
                sweeps.sweep(first)
            assert sweeps.ring_is_left_alone(0.002)
        else:
            sweeps.sweep(first)
        assert index not in sweeps.pager.resident
        sweeps.check_resident()
    finally:
        model.repair(index)
    assert sorted(sweeps.sweep(second)) == _needed(model, second)
