"""The engine against transformers, which computes in float32 with the weights that the package holds."""

import copy
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import save_folder, state_dict
from routing_recorder import RoutingRecorder
from tiny import FAMILIES, from_state, logits, make_tiny
from tiny_hybrid import HYBRID
from tolerances import FLOAT_LOGITS, INT8_LOGITS_RMS, INT8_OVER_BF16, ROUTING_WEIGHTS
from transformers import PreTrainedModel

import estream
from estream.api.model import Model
from estream.conversion.convert import ConvertOptions, convert
from estream.devices.opening import arrays_planner
from estream.engine.batch import Batch
from estream.engine.memory import Floor
from estream.engine.options import LoadOptions
from estream.host import limits
from estream.host.sizes import KiB, MiB

TOKENS = 200


class Tiny:
    """A package and the transformers model with its dequantised weights."""

    def __init__(self, folder: Path, family: str, shape: dict, bits: int, group: int) -> None:
        self.family = family
        model = make_tiny(folder / "source", family, shape)
        self.package = convert(folder / "source", folder / "tiny.estream", ConvertOptions(bits, group))
        config = FAMILIES[family].config.from_pretrained(folder / "source")
        config.tie_word_embeddings = False
        save_folder(folder / "stored", state_dict(self.package, folder / "source"), config.to_json_string())
        self.reference = from_state(family, config, folder / "stored")
        self.ids = np.random.default_rng(5).integers(0, model.config.vocab_size, TOKENS).astype(np.int32)
        self.expected, self.expected_routing = _reference_answer(self.reference, self.ids)

    @cached_property
    def in_float(self) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """What the engine answers with float activations, and how it routed."""
        return _run(self, "float")


def _reference_answer(model: PreTrainedModel, ids: np.ndarray) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Logits, and the experts and weights of each layer."""
    routing = []
    hooks = [
        module.register_forward_hook(lambda module, args, out: routing.append((out[2].numpy(), out[1].numpy())))
        for module in model.modules()
        if type(module).__name__.lower().endswith("topkrouter")
    ]
    found = logits(model, ids)
    for hook in hooks:
        hook.remove()
    return found, routing


CASES = [(family, shape, bits) for family, tiny in FAMILIES.items() for shape in tiny.shapes for bits in (4, 8)]


@pytest.fixture(scope="module", params=CASES, ids=lambda p: f"{p[0]}, {p[1]}, {p[2]} bits")
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    family, shape, bits = request.param
    return Tiny(tmp_path_factory.mktemp("tiny"), family, FAMILIES[family].shapes[shape], bits, 32 if bits == 4 else 64)


def _run(tiny: Tiny, activations: str, forced=None) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    with estream.load(tiny.package.path, threads=2, activations=activations) as model:
        recorder = RoutingRecorder(model, forced)
        result = model.prefill(tiny.ids, positions=range(TOKENS))
        return result.logits, recorder.seen


def _relative_rms(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def _loss_in_bf16(tiny: Tiny, forced: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The relative RMS error of transformers in bfloat16, with these experts and weights."""
    model, routing = copy.deepcopy(tiny.reference).bfloat16(), iter(forced)

    def route(_module: torch.nn.Module, _args: tuple, out: tuple) -> tuple:
        ids, weights = next(routing)
        return out[0], torch.from_numpy(weights).to(out[1].dtype), torch.from_numpy(ids.astype(np.int64))

    for module in model.modules():
        if type(module).__name__.lower().endswith("topkrouter"):
            module.register_forward_hook(route)
    return _relative_rms(logits(model, tiny.ids), tiny.expected)


def test_float_path_gives_the_reference_logits_at_every_position(tiny: Tiny):
    found, _ = tiny.in_float
    assert np.abs(found - tiny.expected).max() <= FLOAT_LOGITS * np.abs(tiny.expected).max()


def test_float_path_chooses_the_same_experts_with_the_same_weights(tiny: Tiny):
    _, seen = tiny.in_float
    expected = tiny.expected_routing
    assert len(expected) == tiny.package.manifest.config.layers - len(tiny.package.manifest.config.dense_layers)
    for (ids, weights), (expected_ids, expected_weights) in zip(seen, expected, strict=True):
        order, expected_order = np.argsort(ids, 1), np.argsort(expected_ids, 1)
        np.testing.assert_array_equal(np.take_along_axis(ids, order, 1), np.take_along_axis(expected_ids, expected_order, 1))
        np.testing.assert_allclose(
            np.take_along_axis(weights, order, 1),
            np.take_along_axis(expected_weights, expected_order, 1),
            rtol=ROUTING_WEIGHTS,
            atol=ROUTING_WEIGHTS,
        )


def test_int8_path_with_the_same_routing_stays_close(tiny: Tiny, record_property):
    _, forced = tiny.in_float
    found, free = _run(tiny, "int8", forced)
    error = _relative_rms(found, tiny.expected)
    flips = np.mean([np.sort(a, 1) != np.sort(b, 1) for (a, _), (b, _) in zip(free, forced, strict=True)])
    record_property("rms_error", error)
    record_property("routing_flips", float(flips))
    unsteady = FAMILIES[tiny.family].unsteady
    assert error <= (INT8_OVER_BF16 * _loss_in_bf16(tiny, forced) if unsteady else INT8_LOGITS_RMS)


@pytest.mark.parametrize(("family", "shape"), [(family, shape) for family, tiny in HYBRID.items() for shape in tiny.shapes])
def test_one_layer_of_linear_attention_stays_as_close_as_any(family: str, shape: str, tmp_path: Path):
    two = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "mlp_only_layers": []}
    tiny = Tiny(tmp_path, family, FAMILIES[family].shapes[shape] | two, 8, 64)
    _, forced = tiny.in_float
    found, _ = _run(tiny, "int8", forced)
    assert _relative_rms(found, tiny.expected) <= INT8_LOGITS_RMS


def test_positions_give_the_rows_that_the_last_position_would(tiny: Tiny):
    with estream.load(tiny.package.path, threads=1) as model:
        whole = model.prefill(tiny.ids, positions=[0, 40, TOKENS - 1]).logits
        for row, position in zip(whole, (0, 40, TOKENS - 1), strict=True):
            np.testing.assert_array_equal(row, model.prefill(tiny.ids[: position + 1]).logits)


def test_slices_of_an_expert_add_up_and_keep_their_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("estream.package.layout.LARGEST_EXPERT_PAGE", 256 * KiB)
    monkeypatch.setattr("estream.package.layout.SMALLEST_EXPERT_SLICE", 128 * KiB)
    # Larger than the slack of the smallest budget, so that pages do stream.
    shape = {"hidden_size": 512, "intermediate_size": 512, "num_attention_heads": 4, "num_local_experts": 16}
    tiny = Tiny(tmp_path, "mixtral", shape | {"num_key_value_heads": 2, "num_experts_per_tok": 2}, 4, 32)
    assert tiny.package.manifest.quantization.expert_slices == 2
    found, _ = tiny.in_float
    assert np.abs(found - tiny.expected).max() <= FLOAT_LOGITS * np.abs(tiny.expected).max()
    with estream.load(tiny.package.path) as resident:
        expected = resident.prefill(tiny.ids).logits
    with Model(tiny.package, LoadOptions(_small_budget(tiny) + 16 * MiB, pinned_bytes=0)) as streamed:
        for _ in range(2):
            result = streamed.prefill(tiny.ids)
            np.testing.assert_array_equal(result.logits, expected)
            assert result.stats.config["ring_bytes"] > 0


def test_head_pages_read_early_leave_room_for_every_slice_of_the_last_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("estream.package.layout.LARGEST_EXPERT_PAGE", 256 * KiB)
    monkeypatch.setattr("estream.package.layout.SMALLEST_EXPERT_SLICE", 16 * KiB)
    monkeypatch.setattr("estream.package.layout.HEAD_PAGE", 64 * KiB)
    shape = {"hidden_size": 512, "intermediate_size": 512, "num_attention_heads": 4, "num_local_experts": 16}
    shape |= {"num_key_value_heads": 2, "num_experts_per_tok": 2, "vocab_size": 30000}
    tiny = Tiny(tmp_path, "mixtral", shape, 4, 32)
    assert tiny.package.manifest.quantization.expert_slices > 8
    with estream.load(tiny.package.path) as resident:
        expected = resident.prefill(tiny.ids, positions=range(TOKENS)).logits
    for spare in range(0, 20, 2):
        budget = _small_budget(tiny, range(TOKENS)) + spare * MiB
        with estream.load(tiny.package.path, memory=budget) as streamed:
            result = streamed.prefill(tiny.ids, positions=range(TOKENS))
        assert result.stats.config["ring_bytes"] > 0
        np.testing.assert_array_equal(result.logits, expected)


def _small_budget(tiny: Tiny, positions=None) -> int:
    manifest = tiny.package.manifest
    plan = arrays_planner(manifest, False, 4)(Batch.of([tiny.ids], [positions]).shape)
    return Floor.of(limits.resident_bytes() + 2 * MiB, plan.bytes, manifest.tape).bytes


def test_transformers_itself_is_the_pinned_one():
    assert torch.__version__.startswith("2.13.0")
