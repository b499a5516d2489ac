"""The NPU device on the emulator at length: every family, the demo model, leaks, budgets. ``pytest -m npu``."""

from pathlib import Path

import numpy as np
import pytest
from demo_scores import Texts
from npu_models import SHAPES, UNCOMPILED, NpuModel, every_position, load, rms_error
from paths import DEMO
from tolerances import NPU_COSINE, NPU_LOGITS_RMS, NPU_SAME_NEXT

import estream
from estream.conversion.convert import ConvertOptions, convert
from estream.host import limits
from estream.host.sizes import MiB

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.npu

LENGTHS = (1, 31, 64, 200)
#: Beside each family as it is: MLPs in three and four slices, the last one narrower, and what a window hides.
CASES = SHAPES | {
    "mixtral, in slices": SHAPES["mixtral"] | {"intermediate_size": 160},
    "deepseek_v2, in slices": SHAPES["deepseek_v2"] | {"intermediate_size": 200},
    "mixtral, a window": SHAPES["mixtral"] | {"sliding_window": 70},
    "deepseek_v2, query rank, groups": SHAPES["deepseek_v2"]
    | {"q_lora_rank": 32, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
}


@pytest.mark.parametrize(("name", "shape"), CASES.items(), ids=list(CASES))
def test_logits_are_those_of_float32_on_the_same_weights_and_routing(tmp_path: Path, name: str, shape: dict, record_property):
    tiny = NpuModel(tmp_path, name.partition(",")[0], shape, 64 if "slices" in name else None)
    with load(tiny.npu) as model:
        alone = [every_position(model, [prompt]) for prompt in tiny.prompts(*LENGTHS)]
        batch, routing = every_position(model, tiny.prompts(*LENGTHS))
    errors = {}
    for length, prompt, (found, ids) in zip(LENGTHS, tiny.prompts(*LENGTHS), alone, strict=True):
        errors[length] = rms_error(found, tiny.expected([prompt], ids))
    errors[sum(LENGTHS)] = rms_error(batch, tiny.expected(tiny.prompts(*LENGTHS), routing))
    record_property("rms_error", errors)
    print(name, errors)
    assert max(errors.values()) < NPU_LOGITS_RMS


def test_the_demo_model_gives_the_same_next_tokens(tmp_path: Path, texts: Texts, record_property):
    cpu = convert(DEMO, tmp_path / "cpu.estream", ConvertOptions(group=32))
    npu = convert(DEMO, tmp_path / "npu.estream", UNCOMPILED)
    prompts = [prompt for prompt, _ in texts[:60]]
    with estream.load(cpu.path, activations="float") as model:
        expected = np.array([result.logits for result in model.prefill_batch(prompts)])
    with load(npu) as model:
        found = np.array([result.logits for result in model.prefill_batch(prompts)])
    same = int((found.argmax(-1) == expected.argmax(-1)).sum())
    cosine = (found * expected).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(expected, axis=-1)
    record_property("same_next", same)
    record_property("cosine", float(cosine.min()))
    print("same next", same, "least cosine", cosine.min())
    assert same >= NPU_SAME_NEXT
    assert cosine.min() >= NPU_COSINE


def test_graphs_from_the_package_give_the_bits_of_those_compiled_at_load(tmp_path: Path):
    tiny = NpuModel(tmp_path, "olmoe", SHAPES["olmoe"])
    held = convert(tmp_path / "source", tmp_path / "held.estream", ConvertOptions(device="qnn", soc=("sm8750",)))
    prompts = tiny.prompts(31)
    with load(tiny.npu, soc="sm8750") as model:
        expected, _ = every_position(model, prompts)
        assert len(model._device.facts()["graphs_compiled_at_load"]) == 12
    with load(held) as model:
        found, _ = every_position(model, prompts)
        assert model._device.facts()["graphs_compiled_at_load"] == []
        assert model._device.variant.startswith("sm8750")
    np.testing.assert_array_equal(found, expected)


def test_ten_thousand_calls_leak_nothing(tmp_path: Path, record_property):
    tiny = NpuModel(tmp_path, "olmoe", SHAPES["olmoe"])
    with load(tiny.npu) as model:
        graph = next(g for g in model._device._graphs.graphs.values() if g.spec.kind == "combine")
        sets = [{t.name: np.zeros(t.shape, t.dtype) for t in (*graph.spec.inputs, *graph.spec.outputs)} for _ in range(4)]
        for arrays in sets * 25:
            graph.run(**arrays)
        before = limits.resident_bytes()
        for call in range(10_000):
            graph.run(**sets[call % 4])
        grown = limits.resident_bytes() - before
    record_property("grown_bytes", grown)
    assert grown < 4 * MiB


def test_the_process_stays_within_its_budget(tmp_path: Path, record_property):
    """The backend's own buffers and libraries count: they are there before the arena is planned."""
    tiny = NpuModel(tmp_path, "olmoe", SHAPES["olmoe"])
    with load(tiny.npu) as model:
        floor = model._process_bytes
    budget = floor + 160 * MiB
    with load(tiny.npu, memory=budget) as model:
        for length in LENGTHS:
            stats = model.prefill(tiny.prompts(length)[0]).stats
        grown = limits.resident_bytes()
    record_property("resident", grown)
    assert stats.budget_bytes == budget
    assert grown <= budget
