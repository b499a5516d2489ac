"""The search for a configuration."""

from itertools import pairwise

import pytest
from msgspec.structs import replace
from simulated_machines import MB, OLMOE, GiB, MiB, constant, memory, profile, skewed_use

from estream.configurator import search
from estream.configurator.profile import Storage
from estream.configurator.prompt_lengths import searched_shapes
from estream.configurator.search import choose, reading
from estream.configurator.simulate import Simulator
from estream.engine.batch import BatchShape
from estream.engine.options import Configuration


def test_the_search_is_deterministic_and_keeps_what_the_user_set():
    first = choose(memory(), profile(), {}, searched_shapes(memory()))
    assert choose(memory(), profile(), {}, searched_shapes(memory())) == first
    given = {"lanes": 3, "ring_bytes": 200 * MiB, "pinned_bytes": 0}
    chosen = choose(memory(), profile(), given, searched_shapes(memory())).chosen.configuration
    assert (chosen.lanes, chosen.ring_bytes, chosen.pinned_bytes) == (3, 200 * MiB, 0)


def test_memory_is_used_only_where_it_saves_time():
    computing = choose(memory(4 * GiB), profile(rate=1e12, seconds=5e-3), {}, [BatchShape.of_prompt(1024)]).chosen
    reading_ = choose(memory(4 * GiB), profile(rate=200 * MB, seconds=1e-4), {}, [BatchShape.of_prompt(1024)]).chosen
    assert computing.peak_bytes < GiB
    assert reading_.peak_bytes > 3 * GiB
    assert reading_.configuration.pinned_bytes is None


def test_the_chosen_configuration_is_no_slower_than_any_tried():
    s, p = memory(), profile(rate=800 * MB, seconds=1e-3)
    choice = choose(s, p, {}, [BatchShape.of_prompt(512)])
    simulator = Simulator(s, p)
    for ring in (64 * MiB, 256 * MiB):
        for pinned in (0, None):
            other = Configuration(**choice.chosen.configuration.to_json() | {"ring_bytes": ring, "pinned_bytes": pinned})
            fresh = simulator.estimate(other, BatchShape.of_prompt(512)).ttft_s
            again = simulator.estimate(other, BatchShape.of_prompt(512), repeated=True).ttft_s
            assert choice.chosen.cost_s <= (fresh + again) / 2 * 1.03


def test_lanes_and_requests_follow_the_storage_curve():
    flat = replace(profile().storage, rates={n: constant(MB * 1000) for n in (1, 2, 4, 8)})
    assert reading(replace(profile(), storage=flat), memory())["lanes"] == 4
    few = replace(profile().storage, rates={n: constant(MB * 1000 // n) for n in (1, 2, 4, 8)})
    assert reading(replace(profile(), storage=few), memory())["lanes"] == 1
    deep = Storage({n: constant(n * 300 * MB) for n in (1, 2, 4, 8)}, constant(1e-3))
    assert reading(replace(profile(), storage=deep), memory())["lanes"] == 8


#: What the order in which pages happen to arrive may cost, where fewer of them are read.
_ORDER = 3e-3
SHAPES = [BatchShape.of_prompt(n) for n in (1, 16, 64, 256, 1024)]


@pytest.mark.parametrize(("rate", "seconds", "skewed"), [(100, 1e-5, False), (1000, 1e-3, True), (4000, 1e-3, False)])
def test_more_memory_never_makes_a_prompt_slower(rate: int, seconds: float, skewed: bool):
    """From the floor to twice the model, short prompts and long ones, on a fresh model and again."""
    machine, use = profile(rate * MB, seconds), skewed_use() if skewed else None
    everything, floor = OLMOE.pages_bytes, memory().floor(SHAPES[-1]).bytes
    rows: list[list[float]] = []
    for step in range(8):
        within = memory(round(floor * (2 * everything / floor) ** (step / 7)))
        chosen = choose(within, machine, {}, SHAPES[:1], use).chosen.configuration
        simulator = Simulator(within, machine, 300, use)
        rows.append([simulator.estimate(chosen, shape, repeated=again).ttft_s for shape in SHAPES for again in (False, True)])
    for before, after in pairwise(rows):
        assert all(now <= then * (1 + _ORDER) for now, then in zip(after, before, strict=True)), (before, after)


def test_with_room_for_the_model_nothing_is_read_again():
    within = memory(round(1.3 * OLMOE.pages_bytes))
    for rate in (100, 4000):
        chosen = choose(within, profile(rate * MB), {}, SHAPES).chosen.configuration
        simulator = Simulator(within, profile(rate * MB))
        assert [simulator.estimate(chosen, shape, repeated=True).bytes_read for shape in SHAPES] == [0] * len(SHAPES)


def test_a_model_that_fits_stays_beside_a_ring_that_does_not(monkeypatch):
    """The largest useful ring may be larger than the model."""
    monkeypatch.setattr(search, "_rings", lambda ample, start: [16 * MiB, 8 * GiB])
    within = memory(OLMOE.pages_bytes + 180 * MiB + OLMOE.pages_bytes // 24)
    chosen = choose(within, profile(4000 * MB, 1e-3), {}, SHAPES[:1]).chosen.configuration
    assert Simulator(within, profile()).arena(chosen).everything_pinned
