"""End to end: every family gives the same bits from a small arena as from memory, in a batch as alone, with MLPs in slices."""

import numpy as np
import pytest
from budgets import budget
from tiny import FAMILIES, make_tiny

import estream
from estream.api.model import Model
from estream.conversion.convert import ConvertOptions, convert
from estream.devices.cpu import activations
from estream.engine.options import LoadOptions
from estream.host.sizes import KiB, MiB
from estream.package.package import Package

#: Large enough for the smallest budget to stream. Few tokens use few experts, so that these are predicted.
LARGE = {
    "hidden_size": 512,
    "intermediate_size": 512,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 768,
    "shared_intermediate_size": 768,
    "num_hidden_layers": 4,
    "n_routed_experts": 16,
    "num_experts": 16,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [1],
}
#: Heads stay as LongRoPE's factors are.
PARTICULAR = {"phimoe": {"num_attention_heads": 32}}
#: The first is beyond the original context of LongRoPE here.
PROMPTS = [list(range(1, n + 1)) for n in (300, 2, 33, 1)]


@pytest.fixture(scope="module", params=FAMILIES)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder, tiny = tmp_path_factory.mktemp("large"), FAMILIES[request.param]
    shape = next(iter(tiny.shapes.values()))
    known = {key: value for key, value in LARGE.items() if key in tiny.config.__annotations__ or key in shape}
    known |= PARTICULAR.get(request.param, {})
    make_tiny(folder / "source", request.param, shape | known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("estream.package.layout.LARGEST_EXPERT_PAGE", 512 * KiB)
        patch.setattr("estream.package.layout.SMALLEST_EXPERT_SLICE", 256 * KiB)
        return convert(folder / "source", folder / "large.estream", ConvertOptions(8, 32))


@pytest.fixture(scope="module")
def alone(package: Package) -> list[np.ndarray]:
    with estream.load(package.path, threads=1) as model:
        return [model.prefill(prompt).logits for prompt in PROMPTS]


def test_mlps_are_cut_into_slices(package: Package):
    config, quantization = package.manifest.config, package.manifest.quantization
    assert quantization.expert_slices > 1
    for layer in range(config.layers):
        slices = [p.spec.slice for p in package.manifest.tape if (p.spec.kind, p.spec.layer) == ("shared", layer)]
        assert (len(slices) > 1) == (config.mlp_intermediate_size(layer) > 0)


@pytest.mark.parametrize("which", [[0], [1], [3], [0, 1, 2], [2, 1, 3]], ids=str)
def test_streamed_and_in_company(package: Package, alone: list[np.ndarray], which: list[int]):
    prompts = [PROMPTS[i] for i in which]
    with Model(package, LoadOptions(budget(package, prompts, 0), 2, request_bytes=64 * KiB)) as model:
        for _ in range(2):
            results = model.prefill_batch(prompts)
            assert results[0].stats.config["ring_bytes"] > 0
            # Nearly all of it is read again.
            assert results[0].stats.bytes_read > 1 * MiB
            for index, result in zip(which, results, strict=True):
                np.testing.assert_array_equal(result.logits, alone[index])


def test_chunks(package: Package, alone: list[np.ndarray], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(activations, "CHUNK", 17)
    for module in ("cpu.attention", "cpu.gated_delta"):
        monkeypatch.setattr(f"estream.devices.{module}.CHUNK", 17)
    monkeypatch.setattr(activations, "EXPERT_ROWS", 11)
    with estream.load(package.path, threads=3) as model:
        for result, expected in zip(model.prefill_batch(PROMPTS), alone, strict=True):
            np.testing.assert_array_equal(result.logits, expected)
