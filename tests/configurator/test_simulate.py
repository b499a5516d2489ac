"""Predictions, against what they follow from and what the engine really does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loaded import configuration_of, memory_of, pinned_bytes_of
from simulated_machines import CONFIG, MB, OLMOE, memory, profile

from estream.api.model import Model
from estream.configurator.simulate import Simulator
from estream.engine.batch import BatchShape
from estream.engine.memory import divide_arena
from estream.engine.options import Configuration, LoadOptions
from estream.host.sizes import MiB
from estream.package.package import Package


def test_reading_alone_takes_what_the_bandwidth_says():
    prediction = Simulator(memory(), profile(seconds=1e-9)).estimate(Configuration(), BatchShape.of_prompt(1024))
    assert prediction.ttft_s == pytest.approx(prediction.bytes_read / (2000 * MB), rel=0.02)
    assert prediction.limit == "read"
    assert prediction.stall_s == pytest.approx(prediction.ttft_s, rel=0.01)


def test_computing_alone_takes_the_sum_of_its_pages():
    prediction = Simulator(memory(), profile(rate=1e15)).estimate(Configuration(), BatchShape.of_prompt(1024))
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
    budget = memory().floor(BatchShape.of_prompt(tokens)).bytes + 300 * step * MiB
    slow = Simulator(memory(budget), profile(rate, seconds), pages=300)
    for faster in (profile(2 * rate, seconds), profile(rate, seconds / 2)):
        quick = Simulator(memory(budget), faster, pages=300)
        a = slow.estimate(Configuration(), BatchShape.of_prompt(tokens), repeated=repeated)
        b = quick.estimate(Configuration(), BatchShape.of_prompt(tokens), repeated=repeated)
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
    budget = memory().floor(BatchShape.of_prompt(tokens)).bytes + spare * MiB
    share = 0.0 if speculative else 2.0
    bound = None if pinned is None else pinned * MiB
    configuration = Configuration(4, 2 * MiB, ring * MiB, bound, share)
    for repeated in (False, True):
        simulator = Simulator(memory(budget), profile(rate), pages=300)
        assert simulator.estimate(configuration, BatchShape.of_prompt(tokens), repeated=repeated).ttft_s > 0


def test_first_layers_stand_for_all():
    """A long tape is simulated in part; on a regular one that hardly differs from simulating all of it."""
    for seconds in (1e-4, 1e-3, 3e-3):
        whole = Simulator(memory(), profile(seconds=seconds), pages=10**6)
        part = Simulator(memory(), profile(seconds=seconds), pages=400)
        for tokens in (8, 1024):
            a = whole.estimate(Configuration(), BatchShape.of_prompt(tokens))
            b = part.estimate(Configuration(), BatchShape.of_prompt(tokens))
            assert b.ttft_s == pytest.approx(a.ttft_s, rel=0.03)
            assert b.bytes_read == pytest.approx(a.bytes_read, rel=0.03)


@pytest.mark.parametrize("pinned", [0, 4 * MiB])
def test_the_simulation_reads_what_the_engine_reads(demo_package: Package, pinned: int):
    """The same schedule runs on both clocks: bytes agree, on a fresh model and on a used one."""
    manifest = demo_package.manifest
    ids = np.random.default_rng(0).integers(0, manifest.config.vocabulary, 400)
    with Model(demo_package, LoadOptions(threads=1, pinned_bytes=pinned)) as model:
        simulated, configuration = Simulator(memory_of(model), profile()), configuration_of(model)
        used: list[int] = []
        for repeated in (False, True):
            with model.record() as timeline:
                stats = model.prefill(ids).stats
            prediction = simulated.estimate(configuration, BatchShape.of_prompt(len(ids)), repeated=repeated)
            read = sum(e["args"]["bytes"] for e in timeline.events if e["name"] == "pages")
            # Which experts the last row takes is not known beforehand, nor how many of them are pinned.
            expert = next(p.padded_bytes for p in manifest.tape if p.spec.kind == "expert")
            assert abs(prediction.bytes_read - read) <= manifest.config.moe.top_k * expert
            arena = simulated.arena(configuration)
            layout = divide_arena(arena, memory_of(model).plan_arrays(BatchShape.of_prompt(len(ids))).bytes)
            assert stats.config["ring_bytes"] == layout.ring_bytes > 0
            assert stats.config["pinned_pages"] == len(arena.pinned)
            assert pinned_bytes_of(model) == arena.pinned_bytes <= pinned
            used.append(read)
    # What the first sweep taught may spare the second one an expert or two.
    assert used[1] < used[0] - pinned // 2 if pinned else used[1] <= used[0]
