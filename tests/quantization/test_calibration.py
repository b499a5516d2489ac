"""Conversion with a calibration text: the choice of codes against its definition, determinism and memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from correlated import correlated_inputs
from tiny import OLMOE_SHAPES, make_olmoe, make_tiny

import estream
from estream import _native
from estream.conversion.convert import ConvertOptions, convert
from estream.models.config import MoeConfig
from estream.quantization.calibration import swiglu
from estream.quantization.statistics import InputStatistics, input_statistics

SHAPE = OLMOE_SHAPES["8 experts, grouped queries"]


def _choose(weights: np.ndarray, statistics: InputStatistics, group: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
    inputs = len(statistics.order)
    codes = np.empty((len(weights), inputs), np.int8)
    scales = np.empty((len(weights), inputs // group), np.uint16)
    chooser = _native.CodeChooser(threads)
    chooser.choose(weights, statistics.moments, statistics.feedback, statistics.order, group, codes, scales)
    return codes, scales


def _values(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return (codes.reshape(*scales.shape, -1) * scales.view(np.float16).astype(np.float64)[:, :, None]).reshape(codes.shape)


def _cost(weights: np.ndarray, values: np.ndarray, statistics: InputStatistics) -> float:
    error = weights - values
    return float(np.einsum("ri,ij,rj->", error, statistics.moments.astype(np.float64), error))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_codes_cost_much_less_than_rounding_and_no_change_of_one_helps_early_inputs(group: int):
    x, token_weights = correlated_inputs(2000, 256)
    statistics = input_statistics(x, token_weights, 256)
    weights = (0.02 * np.random.default_rng(1).standard_normal((70, 256))).astype(np.float32)
    codes, scales = _choose(weights, statistics, group, 1)
    assert codes.min() >= -8
    assert codes.max() <= 7
    steps = np.repeat(scales.view(np.float16).astype(np.float64), group, axis=1)
    rounded = np.clip(np.rint(weights / steps), -8, 7) * steps
    values = _values(codes, scales)
    assert _cost(weights, values, statistics) < 0.6 * _cost(weights, rounded, statistics)
    # The last input that was visited has the code that is best while the others stay.
    best = [_cost_with_last(weights, codes, steps, statistics, code) for code in range(-8, 8)]
    np.testing.assert_array_equal(np.argmin(best, axis=0) - 8, codes[:, -1])


def _cost_with_last(weights, codes, steps, statistics: InputStatistics, code: int) -> np.ndarray:
    changed = codes.astype(np.float64)
    changed[:, -1] = code
    error = weights - changed * steps
    return np.einsum("ri,ij,rj->r", error, statistics.moments.astype(np.float64), error)


def test_threads_and_padding_change_nothing():
    x, token_weights = correlated_inputs(300, 40)
    statistics = input_statistics(x, token_weights, 64)
    weights = np.random.default_rng(2).standard_normal((100, 40)).astype(np.float32)
    codes, scales = _choose(weights, statistics, 64, 1)
    for other in (_choose(weights, statistics, 64, 3), _choose(weights[:33], statistics, 64, 2)):
        np.testing.assert_array_equal(other[0], codes[: len(other[0])])
        np.testing.assert_array_equal(other[1], scales[: len(other[1])])
    assert (codes[:, 40:] == 0).all()


def test_every_variant_chooses_the_same_codes(monkeypatch: pytest.MonkeyPatch):
    x, token_weights = correlated_inputs(1000, 256)
    statistics = input_statistics(x, token_weights, 256)
    weights = np.random.default_rng(4).standard_normal((64, 256)).astype(np.float32)
    chosen = []
    for name in _native.variants():
        monkeypatch.setenv("ESTREAM_KERNELS", name)
        chosen.append(_choose(weights, statistics, 64, 1))
    for codes, scales in chosen[1:]:
        np.testing.assert_array_equal(codes, chosen[0][0])
        np.testing.assert_array_equal(scales, chosen[0][1])


def test_zero_weights_and_zero_inputs_are_kept():
    x, token_weights = correlated_inputs(300, 64)
    for inputs in (x, np.zeros_like(x)):
        codes, scales = _choose(np.zeros((5, 64), np.float32), input_statistics(inputs, token_weights, 64), 64, 1)
        assert not codes.any()
        assert not scales.any()


def test_equal_conversions_are_equal_and_reported(tiny_source: Path, ids: Path, tmp_path: Path):
    a, b, plain = (
        convert(tiny_source, tmp_path / f"{name}.estream", ConvertOptions(calibrate=text))
        for name, text in (("a", ids), ("b", str(ids)), ("plain", None))
    )
    assert a.pages_path.read_bytes() == b.pages_path.read_bytes()
    assert a.pages_path.read_bytes() != plain.pages_path.read_bytes()
    report = a.manifest.report
    assert report is not None
    assert report == b.manifest.report
    assert report.calibration == {"text": "ids.npy", "tokens": 2500, "windows": 5}
    assert len(report.layers) == 3
    assert all(x.outputs is not None and 0 < x.outputs < 0.3 for x in report.layers)
    assert plain.manifest.report is not None
    assert plain.manifest.report.calibration is None


def test_what_down_is_given_is_what_a_gate_makes_of_its_products():
    random = np.random.default_rng(5)
    x, rows, bias = (3.0 * random.standard_normal(shape).astype(np.float32) for shape in ((50, 16), (24, 16), (24,)))
    plain, clamped = (
        MoeConfig(2, 1, 12, norm_topk_prob=False, swiglu_alpha=a, swiglu_limit=b) for a, b in ((0.0, 0.0), (1.7, 2.0))
    )
    gate, up = np.split((x @ rows.T).astype(np.float64), 2, axis=1)
    np.testing.assert_allclose(swiglu(x, rows, None, plain), gate / (1 + np.exp(-gate)) * up, rtol=1e-4, atol=1e-5)
    gate, up = np.split((x @ rows.T).astype(np.float64) + bias, 2, axis=1)
    gate, up = np.minimum(gate, 2.0), np.clip(up, -2.0, 2.0)
    np.testing.assert_allclose(
        swiglu(x, rows, bias, clamped), gate / (1 + np.exp(-1.7 * gate)) * (up + 1), rtol=1e-4, atol=1e-5
    )


def test_experts_with_biases_and_clamped_gates_are_calibrated(tmp_path: Path, ids: Path):
    """Not only on the text: other sequences of its few ids get answers nearer to those of 8 bits than without it. Every expert
    serves every token, so that routing is the same.
    """
    source = tmp_path / "oss"
    make_tiny(
        source, "gpt_oss", {"hidden_size": 128, "intermediate_size": 128, "num_local_experts": 4, "num_experts_per_tok": 4}
    )
    exact = convert(source, tmp_path / "exact.estream", ConvertOptions(bits=8))
    text = tmp_path / "text.npy"
    np.save(text, np.random.default_rng(1).integers(0, 24, 6000))
    prompt = np.random.default_rng(2).integers(0, 24, 200)
    answers = []
    for name, options in (("plain", ConvertOptions()), ("calibrated", ConvertOptions(calibrate=text))):
        package = convert(source, tmp_path / f"{name}.estream", options)
        assert package.manifest.report is not None
        answers.append(_every_logit(package.path, prompt) - _every_logit(exact.path, prompt))
    plain, calibrated = (np.sqrt(np.mean(np.square(error))) for error in answers)
    assert calibrated < 0.9 * plain


def _every_logit(path: Path, prompt: np.ndarray) -> np.ndarray:
    with estream.load(path, activations="float") as model:
        return model.prefill_batch([prompt], [range(len(prompt))])[0].logits


def test_experts_that_see_few_tokens_are_named(tmp_path: Path, ids: Path):
    source = tmp_path / "sixty"
    make_olmoe(source, OLMOE_SHAPES["60 experts, tied, normalised weights"])
    np.save(tmp_path / "long.npy", np.random.default_rng(0).integers(0, 330, 4000))
    package = convert(source, tmp_path / "out.estream", ConvertOptions(calibrate=tmp_path / "long.npy"))
    assert package.manifest.report is not None
    # 4,000 tokens with four experts each are 267 for each of sixty on average, so some have fewer than 256.
    for layer in package.manifest.report.layers:
        assert 0 < len(layer.scarce) < 60
        assert layer.scarce == sorted(set(layer.scarce))


@pytest.mark.parametrize("bits", [4, 8])
def test_memory_follows_the_text_and_one_layer_not_the_model(bits: int, tmp_path: Path, ids: Path):
    """Twelve times the layers may not take more memory, but for what the allocator keeps."""
    peaks = []
    for layers in (2, 24):
        source = tmp_path / f"layers-{layers}"
        make_olmoe(source, SHAPE | {"num_hidden_layers": layers, "hidden_size": 256, "intermediate_size": 256})
        program = (
            "import sys; from estream.conversion.convert import ConvertOptions, convert; from estream.host import limits\n"
            "convert(sys.argv[1], sys.argv[2], ConvertOptions(int(sys.argv[4]), calibrate=sys.argv[3]))\n"
            "print(limits.peak_resident_bytes())"
        )
        command = [sys.executable, "-c", program, source, tmp_path / f"{layers}.estream", ids, str(bits)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert (tmp_path / "layers-24/model.safetensors").stat().st_size > 100 << 20
    assert peaks[1] < peaks[0] + (24 << 20)
