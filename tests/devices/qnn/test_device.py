"""The NPU device on the vendor's emulator, on the smallest models; what takes long is in test_device_long.py."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from npu_models import SHAPES, NpuModel, every_position, load, rms_error
from tolerances import NPU_LOGITS_RMS
from typer.testing import CliRunner

pytest.importorskip("onnxruntime_qnn")

from estream.api.model import Model
from estream.cli.app import app
from estream.devices.qnn import target
from estream.engine.options import LoadOptions
from estream.errors import OptionError
from estream.package.npu.pages import page_layout

LENGTHS = (1, 31)
#: One between the first and the last, so that its experts are predicted.
LAYERS = 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> NpuModel:
    return NpuModel(tmp_path_factory.mktemp("npu"), "olmoe", SHAPES["olmoe"] | {"num_hidden_layers": LAYERS})


@pytest.fixture(scope="module")
def model(tiny: NpuModel) -> Iterator[Model]:
    with load(tiny.npu) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def found(tiny: NpuModel, model: Model) -> tuple[np.ndarray, list[np.ndarray]]:
    return every_position(model, tiny.prompts(*LENGTHS))


def _graphs(model: Model) -> dict[str, Any]:
    return dict(model._device._graphs.graphs)  # type: ignore[attr-defined]


def test_logits_are_those_of_float32_on_the_same_weights_and_routing(tiny: NpuModel, found, record_property):
    logits, routing = found
    error = rms_error(logits, tiny.expected(tiny.prompts(*LENGTHS), routing))
    record_property("rms_error", error)
    assert error < NPU_LOGITS_RMS


def test_experts_without_tokens_are_left_out(tiny: NpuModel, model: Model):
    result = model.prefill(tiny.prompts(1)[0])
    assert result.stats.config["expert_rows"] == tiny.moe.top_k * LAYERS
    assert result.stats.config["expert_calls"] == tiny.moe.top_k * LAYERS
    assert result.logits.shape == (330,)


def test_every_node_of_every_graph_runs_on_the_npu(model: Model):
    graphs = _graphs(model)
    assert 0 < len(graphs) <= 12
    for graph in graphs.values():
        assert list(graph.session.assignment()) == ["QNNExecutionProvider"]


def test_answers_do_not_depend_on_the_arena(tiny: NpuModel, found):
    options = LoadOptions(device="qnn", ring_bytes=0, pinned_bytes=0, request_bytes=65536)
    with Model(tiny.npu, options) as streamed:
        again, _ = every_position(streamed, tiny.prompts(*LENGTHS))
        stats = streamed.prefill(tiny.prompts(1)[0]).stats
    assert stats.config["ring_bytes"] > 0
    assert stats.prediction["predicted"] > 0
    np.testing.assert_array_equal(again, found[0])


def test_new_weights_at_the_same_address_need_no_new_bind(tiny: NpuModel, model: Model):
    graph = _graphs(model)[min(name for name in _graphs(model) if name.startswith("mlp4"))]
    layout = page_layout(tiny.npu.manifest.npu.shapes, "expert")
    first, second = [p for p in tiny.npu.manifest.tape if p.spec.kind == "expert"][:2]
    data = np.fromfile(tiny.npu.pages_path, np.uint8)
    slot = np.zeros(layout.bytes, np.uint8)
    rng = np.random.default_rng(0)
    arrays = {t.name: np.zeros(t.shape, t.dtype) for t in (*graph.spec.inputs, *graph.spec.outputs) if not t.weight}
    arrays["x"][...] = rng.standard_normal(arrays["x"].shape)
    arrays["weights"].fill(1.0)
    results = []
    for page, bind in ((first, True), (second, False), (second, True)):
        slot[: page.bytes] = data[page.offset : page.offset + page.bytes]
        if bind:
            graph.bind_page(layout, slot.ctypes.data)
            graph.run(**arrays)
        else:
            graph.session.run()
        results.append(arrays["sums_out"].copy())
    assert np.abs(results[0]).max() > 0
    assert not np.array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[1], results[2])


def test_an_emulator_gives_no_times(tiny: NpuModel, model: Model):
    stats = model.prefill(tiny.prompts(1)[0]).stats
    assert stats.emulated
    assert stats.config["target"] == "emulator"
    assert [stats.to_json()[key] for key in ("ttft_s", "compute_s", "stall_s", "predicted_ttft_s")] == [None] * 4


def test_the_command_line_says_emulator(tiny: NpuModel):
    run = CliRunner().invoke(app, ["run", str(tiny.npu.path), "--device", "qnn", "--tokens", "1"])
    assert run.exit_code == 0, run.output
    assert "emulator" in run.output
    assert "tokens/s" not in run.output
    for command in (["run", "--trace", "t.json", "--tokens", "1"], ["bench"]):
        refused = CliRunner().invoke(app, [*command, str(tiny.npu.path), "--device", "qnn"])
        assert isinstance(refused.exception, OptionError)
        assert "not the NPU's" in str(refused.exception)
    shown = CliRunner().invoke(app, ["inspect", str(tiny.npu.path), "--json"])
    assert json.loads(shown.output)["device"] == "qnn"


def test_options_that_do_not_fit_are_refused(tiny: NpuModel, monkeypatch: pytest.MonkeyPatch):
    for options, message in (
        ({"activations": "float"}, "float16 activations"),
        ({"soc": "sm1"}, "'sm1' is not known"),
    ):
        with pytest.raises(OptionError, match=message):
            load(tiny.npu, **options)
    with pytest.raises(OptionError, match="give it with device qnn"):
        LoadOptions(soc="sm8750").check()
    monkeypatch.setattr(target, "target", lambda: None)
    with pytest.raises(OptionError, match=r"pip install 'estream\[qnn\]'"):
        load(tiny.npu)
