"""The simulated clock: curves, the simulated lanes, and predictions against what the engine really does."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_machines import CONFIG, MB, OLMOE, profile, setting

from estream.api.model import Model
from estream.configurator.costs import FULL, RatedCosts
from estream.configurator.curve import Curve, Point
from estream.configurator.simulate import Setting, Simulator
from estream.configurator.simulated import SimulatedClock, SimulatedReader, Workload, draw_routing
from estream.engine.options import Configuration, LoadOptions
from estream.errors import OptionError
from estream.host.sizes import MiB
from estream.package.package import Package


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 10**6)), min_size=1, unique_by=lambda p: p[0]))
def test_a_curve_goes_through_its_points_and_stays_between_them(rows):
    curve = Curve.of(Point(x, y) for x, y in rows)
    for x, y in rows:
        assert curve(x) == pytest.approx(y)
    for a, b in pairwise(curve.points):
        middle = curve((a.x + b.x) / 2)
        assert min(a.value, b.value) - 1e-6 <= middle <= max(a.value, b.value) + 1e-6


def test_the_median_and_the_spread_of_samples_are_kept():
    point = Point.of(4, [3.0, 1.0, 2.0])
    assert (point.value, point.spread) == (2.0, 1.0)


@given(st.integers(1, 16), st.lists(st.integers(1, 64), min_size=1, max_size=40))
def test_simulated_lanes_never_exceed_the_measured_bandwidth(lanes: int, pages: list[int]):
    clock = SimulatedClock()
    reader = SimulatedReader(clock, profile(), lanes, 2 * MiB)
    total, ticket = 0, 0
    for page in pages:
        size = page * 64 * 1024
        ticket = reader.submit(0, 0, 0, size, [(0, size, 0, True)])
        total += size
    for i in range(ticket + 1):
        reader.wait(i, 1.0)
    assert clock.now >= total / (2000 * MB) * (1 - 1e-9)
    assert reader.bytes == total
    assert reader.read_s == pytest.approx(clock.now)


def test_reading_alone_takes_what_the_bandwidth_says():
    prediction = Simulator(setting(), profile(seconds=1e-9)).predict(Configuration(), Workload.prompt(1024))
    assert prediction.ttft_s == pytest.approx(prediction.bytes_read / (2000 * MB), rel=0.02)
    assert prediction.limit == "read"
    assert prediction.stall_s == pytest.approx(prediction.ttft_s, rel=0.01)


def test_computing_alone_takes_the_sum_of_its_pages():
    prediction = Simulator(setting(), profile(rate=1e15)).predict(Configuration(), Workload.prompt(1024))
    assert prediction.compute_s == pytest.approx(prediction.ttft_s, rel=1e-6)
    # The last layer has one row, so only eight of its experts are computed; the head costs next to nothing here.
    pages = [p for p in OLMOE.tape if p.spec.kind != "head"]
    unused = CONFIG.moe.experts - CONFIG.moe.top_k
    assert prediction.compute_s == pytest.approx((len(pages) - unused) * 1e-3)
    assert prediction.limit == "compute"


@settings(deadline=None, max_examples=12)
@given(st.sampled_from([1, 16, 300, 4096]), st.integers(0, 3), st.booleans())
def test_a_faster_disk_or_device_is_never_predicted_to_be_slower(tokens: int, step: int, repeated: bool):
    rate, seconds = 500 * MB * 2**step, 4e-3 / 2**step
    budget = setting().floor(Workload.prompt(tokens)).bytes + 300 * step * MiB
    slow = Simulator(setting(budget), profile(rate, seconds), pages=300)
    for faster in (profile(2 * rate, seconds), profile(rate, seconds / 2)):
        quick = Simulator(setting(budget), faster, pages=300)
        a = slow.predict(Configuration(), Workload.prompt(tokens), repeated=repeated)
        b = quick.predict(Configuration(), Workload.prompt(tokens), repeated=repeated)
        assert b.ttft_s <= a.ttft_s * (1 + 1e-9)
        assert max(a.compute_s, a.read_s) <= a.ttft_s * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.sampled_from([1, 4, 16, 40, 200]),
    spare=st.integers(0, 400),
    ring=st.integers(0, 400),
    pinned=st.none() | st.integers(0, 300),
    speculative=st.booleans(),
    rate=st.sampled_from([100 * MB, 2000 * MB, 100_000 * MB]),
)
def test_no_arena_is_too_small_for_any_order_of_pages(tokens, spare, ring, pinned, speculative, rate):
    """The engine's own pager never comes to wait for a page that has no place, from the floor upwards."""
    budget = setting().floor(Workload.prompt(tokens)).bytes + spare * MiB
    share = 0.0 if speculative else 2.0
    bound = None if pinned is None else pinned * MiB
    configuration = Configuration(4, 2 * MiB, ring * MiB, bound, share)
    for repeated in (False, True):
        simulator = Simulator(setting(budget), profile(rate), pages=300)
        assert simulator.predict(configuration, Workload.prompt(tokens), repeated=repeated).ttft_s > 0


def test_first_layers_stand_for_all():
    """A long tape is simulated in part; on a regular one that hardly differs from simulating all of it."""
    for seconds in (1e-4, 1e-3, 3e-3):
        whole = Simulator(setting(), profile(seconds=seconds), pages=10**6)
        part = Simulator(setting(), profile(seconds=seconds), pages=400)
        for tokens in (8, 1024):
            a = whole.predict(Configuration(), Workload.prompt(tokens))
            b = part.predict(Configuration(), Workload.prompt(tokens))
            assert b.ttft_s == pytest.approx(a.ttft_s, rel=0.03)
            assert b.bytes_read == pytest.approx(a.bytes_read, rel=0.03)


@pytest.mark.parametrize("pinned", [0, 4 * MiB])
def test_the_simulation_reads_what_the_engine_reads(demo_package: Package, pinned: int):
    """The same schedule runs on both clocks: bytes agree, on a fresh model and on a used one."""
    manifest = demo_package.manifest
    ids = np.random.default_rng(0).integers(0, manifest.config.vocabulary, 400)
    with Model(demo_package, LoadOptions(threads=1, pinned_bytes=pinned)) as model:
        kv = model._device.kv_element_bytes
        simulated = Simulator(Setting(manifest, model.budget_bytes, model._process_bytes, False, kv), profile())
        used: list[int] = []
        for repeated in (False, True):
            with model.record() as timeline:
                stats = model.prefill(ids).stats
            prediction = simulated.predict(model._configuration, Workload.prompt(len(ids)), repeated=repeated)
            read = sum(e["args"]["bytes"] for e in timeline.events if e["name"] == "pages")
            # Which experts the last row takes is not known beforehand, nor how many of them are pinned.
            expert = next(p.padded_bytes for p in manifest.tape if p.spec.kind == "expert")
            assert abs(prediction.bytes_read - read) <= manifest.config.moe.top_k * expert
            assert stats.config["pinned_pages"] == len(simulated.arena(model._configuration).pinned)
            used.append(read)
    assert (used[1] < used[0]) == bool(pinned)


@given(st.integers(1, 4096))
def test_drawn_routing_sends_every_token_to_all_its_experts(tokens: int):
    routing = draw_routing(CONFIG, tokens, 3)
    counts = np.diff(routing.starts)
    assert counts.sum() == tokens * CONFIG.moe.top_k
    assert len(routing.used) >= CONFIG.moe.top_k


def test_tiles_cover_rows_and_cost_their_tail():
    costs = RatedCosts(1e12, 1e12, 1e15, 0.0, (16, 64))
    expert = next(p.spec for p in OLMOE.tape if p.spec.kind == "expert")
    assert costs.expert(expert, 1) == costs.expert(expert, 16)
    assert costs.expert(expert, 17) == costs.expert(expert, 64) == pytest.approx(4 * costs.expert(expert, 16))
    assert costs.expert(expert, 65) == pytest.approx(5 * costs.expert(expert, 16))


def test_sequences_do_not_attend_to_each_other():
    costs = replace(profile().costs, attention_curves={FULL: Curve((Point(1, 1e-3), Point(2048, 0.2)))}, attention_square=1e-8)
    spec = OLMOE.tape[0].spec
    one, two = costs.attention(spec, CONFIG, [2048], None), costs.attention(spec, CONFIG, [1024, 1024], None)
    assert one - two == pytest.approx(1e-8 * (2048**2 - 2 * 1024**2))


@pytest.mark.parametrize("rows", [[], [[1]], [[2, 1.0], [1, 1.0]], [[1, -1.0]], "x", [["a", 1]]])
def test_a_curve_without_sense_is_refused(rows):
    with pytest.raises(OptionError, match="storage"):
        Curve.from_json(rows, "p.json: 'storage'")
