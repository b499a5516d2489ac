"""End to end: a package's order of experts is the order in which they are added, whatever moves the bytes."""

from pathlib import Path

import numpy as np
import pytest
from budgets import budget
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reordered import random_order, reorder
from routing_recorder import RoutingRecorder
from tiny import FAMILIES, make_tiny
from tiny_answers import PROMPTS
from tolerances import REORDERED_LOGITS

import estream
from estream.api.model import Model
from estream.conversion.convert import ConvertOptions, convert
from estream.engine.options import LoadOptions
from estream.host.sizes import KiB, MiB
from estream.package.package import Package

#: One dense layer, shared experts; below, experts of two slices.
SHAPE = {"hidden_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 3}


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("sliced")
    make_tiny(folder / "source", "deepseek_v2", FAMILIES["deepseek_v2"].shapes["as V2-Lite"] | SHAPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("estream.package.layout.LARGEST_EXPERT_PAGE", 160 * KiB)
        patch.setattr("estream.package.layout.SMALLEST_EXPERT_SLICE", 80 * KiB)
        package = convert(folder / "source", folder / "sliced.estream", ConvertOptions(8, 32))
    assert package.manifest.quantization.expert_slices > 1
    return package


@pytest.fixture(scope="module", params=["whole", "sliced"])
def by_id(request: pytest.FixtureRequest, tiny_package: Package, sliced: Package) -> Package:
    return tiny_package if request.param == "whole" else sliced


@pytest.fixture(scope="module")
def ordered(by_id: Package, tmp_path_factory: pytest.TempPathFactory) -> Package:
    return reorder(by_id, random_order(by_id.manifest.config, 3), tmp_path_factory.mktemp("ordered") / "a.estream")


@pytest.fixture(scope="module")
def alone(ordered: Package) -> list[np.ndarray]:
    """Each prompt on its own, all in memory, one thread."""
    return _answers(ordered)


def _answers(package: Package, **options: str) -> list[np.ndarray]:
    with estream.load(package.path, threads=1, **options) as model:
        return [model.prefill(prompt).logits for prompt in PROMPTS]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spare=st.sampled_from([0, 1, 4096]),
    threads=st.integers(1, 3),
    lanes=st.integers(1, 4),
    which=st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=5),
)
def test_one_order_has_the_same_bits(ordered: Package, alone: list[np.ndarray], spare, threads, lanes, which):
    prompts = [PROMPTS[i] for i in which]
    options = LoadOptions(budget(ordered, prompts, spare * MiB), threads, lanes=lanes, request_bytes=64 * KiB)
    with Model(ordered, options) as model:
        for _ in range(2):
            for index, result in zip(which, model.prefill_batch(prompts), strict=True):
                np.testing.assert_array_equal(result.logits, alone[index])
        assert spare == 4096 or result.stats.bytes_read > 0


def test_the_order_by_id_written_out_is_no_other(by_id: Package, tmp_path: Path):
    config = by_id.manifest.config
    experts = tuple(range(config.moe.experts))
    order = tuple(() if layer in config.dense_layers else experts for layer in range(config.layers))
    named = reorder(by_id, order, tmp_path / "named.estream")
    assert named.pages_path.read_bytes() == by_id.pages_path.read_bytes()
    for a, b in zip(_answers(named), _answers(by_id), strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_order_rounds_otherwise_and_answers_alike(by_id: Package, ordered: Package):
    """With the same routing and without activations that are rounded to 8 bits, only the sums' order differs."""
    with estream.load(by_id.path, threads=1, activations="float") as model:
        recorder = RoutingRecorder(model)
        first = model.prefill(PROMPTS[-1]).logits
        seen = recorder.seen
    with estream.load(ordered.path, threads=1, activations="float") as model:
        RoutingRecorder(model, seen)
        second = model.prefill(PROMPTS[-1]).logits
    assert not np.array_equal(first, second)
    error = float(np.abs(first - second).max() / np.abs(first).max())
    assert error < REORDERED_LOGITS
