"""Native kernels against NumPy: every variant that this machine can run."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_results import quantized_rows, random_matrix
from paths import ROOT
from reference import unpack
from tolerances import BF16_ATTENTION, VARIANT_RELATIVE

from estream import _native
from estream.package.parts import MatrixPart


def test_pack_and_unpack_agree_with_the_documented_format():
    rng = np.random.default_rng(0)
    for bits, group, outputs, columns in ((4, 128, 64, 256), (4, 32, 40, 70), (8, 64, 33, 128), (8, 32, 7, 5)):
        inputs = -(-columns // group) * group
        weights = rng.standard_normal((outputs, columns)).astype(np.float32)
        part = MatrixPart("w", 0, outputs, inputs, columns, bits, group)
        matrix = _native.Matrix(outputs, inputs, bits, group)
        packed = np.zeros(part.bytes, np.uint8)
        order = np.arange(outputs, dtype=np.int32)
        assert matrix.bytes == part.bytes
        assert _native.Packer(2).pack(matrix, [weights.reshape(-1).view(np.uint8)], "float32", columns, order, packed)[0] == -1
        native = np.empty((outputs, inputs), np.float32)
        _native.unpack(matrix, packed, native)
        np.testing.assert_array_equal(native[:, :columns], unpack(part, packed))
        assert (native[:, columns:] == 0).all()
        error = native[:, :columns] - weights
        assert (error**2).sum() / (weights**2).sum() < (0.012 if bits == 4 else 1e-4)
        # The largest positive weight may be clipped to 7/10 of a group's peak, no more.
        assert np.abs(error).max() < (0.35 if bits == 4 else 0.01) * np.abs(weights).max()


def test_eight_bit_weights_on_a_grid_are_exact():
    rng = np.random.default_rng(1)
    codes = rng.integers(-127, 128, (32, 128))
    codes[:, 0] = 127
    weights = (codes * 2.0**-9).astype(np.float32)
    matrix = _native.Matrix(32, 128, 8, 128)
    packed, native = np.zeros(matrix.bytes, np.uint8), np.empty((32, 128), np.float32)
    _native.Packer(1).pack(matrix, [weights.reshape(-1).view(np.uint8)], "float32", 128, np.arange(32, dtype=np.int32), packed)
    _native.unpack(matrix, packed, native)
    np.testing.assert_array_equal(native, weights)


def test_packing_names_the_row_that_is_not_finite():
    weights = np.zeros((40, 64), np.float32)
    weights[37, 63] = np.nan
    matrix = _native.Matrix(40, 64, 4, 64)
    packed = np.zeros(matrix.bytes, np.uint8)
    order = np.arange(40, dtype=np.int32)
    assert _native.Packer(1).pack(matrix, [weights.reshape(-1).view(np.uint8)], "float32", 64, order, packed)[0] == 37
    weights[37, 63] = 1e30
    assert _native.Packer(1).pack(matrix, [weights.reshape(-1).view(np.uint8)], "float32", 64, order, packed)[0] == 37


@settings(deadline=None, max_examples=30)
@given(
    bits=st.sampled_from([4, 8]),
    group=st.sampled_from([32, 64, 128]),
    groups=st.integers(1, 3),
    outputs=st.integers(1, 70),
    rows=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_int8_product_is_the_sum_of_its_groups(bits, group, groups, outputs, rows, seed):
    rng = np.random.default_rng(seed)
    inputs = group * groups
    device = _native.CpuDevice(2)
    matrix, packed, weights = random_matrix(rng, outputs, inputs, bits, group)
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    quantized, codes, scales = quantized_rows(device, x, group)
    y = np.zeros((rows, outputs), np.float32)
    device.matmul(matrix, packed.ctypes.data, quantized, y)
    exact = (codes.reshape(rows, groups, group) * scales[..., None]).reshape(rows, inputs).astype(np.float64) @ weights.T
    np.testing.assert_allclose(y, exact, rtol=2e-5, atol=2e-5 * np.abs(exact).max())
    device.matmul(matrix, packed.ctypes.data, quantized, y, True)
    np.testing.assert_allclose(y, 2 * exact, rtol=2e-5, atol=4e-5 * np.abs(exact).max())
    device.matmul(matrix, packed.ctypes.data, x, y)
    np.testing.assert_allclose(y, x.astype(np.float64) @ weights.T, rtol=2e-5, atol=2e-5 * np.abs(exact).max())


def test_codes_of_activations_are_exact():
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((5, 256)) * rng.uniform(0.01, 50, (5, 1))).astype(np.float32)
    x[2, 64:128] = 0
    _, codes, scales = quantized_rows(_native.CpuDevice(1), x, 64)
    groups = x.reshape(5, 4, 64)
    peak = np.abs(groups).max(-1)
    np.testing.assert_array_equal(scales, peak / np.float32(127))
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    np.testing.assert_array_equal(codes, np.rint(groups * inverse[..., None]).reshape(5, 256).astype(np.int8))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("threads", "dim"), [(1, 24), (3, 24), (2, 64)])
def test_attention_matches_its_definition(threads, dim, exact):
    rng = np.random.default_rng(3)
    device = _native.CpuDevice(threads, exact)
    heads, kv_heads, lengths = 6, 2, [1, 70, 33]
    padded = [-(-n // 32) * 32 for n in lengths]
    bases = np.repeat(np.cumsum([0, *padded[:-1]]), lengths).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    tokens, capacity = sum(lengths), sum(padded)
    q = rng.standard_normal((tokens, heads * dim)).astype(np.float32)
    k, v = (rng.standard_normal((tokens, kv_heads * dim)).astype(np.float32) for _ in range(2))
    # Whatever lies behind a sequence must not matter, in values as long as it is finite.
    size = device.kv_element_bytes
    keys = np.full(kv_heads * capacity * dim * size, 0xFF, np.uint8)
    values = np.full(kv_heads * capacity * (-(-dim // 16) * 16) * size, 0x40, np.uint8)
    shape = _native.Attention(heads, kv_heads, dim, dim, dim**-0.5)
    device.store_key_values(shape, k, v, np.arange(tokens, dtype=np.int32), bases + positions, keys, values, capacity)
    out = np.empty((tokens, heads * dim), np.float32)
    # The first and the last sequence have one block each, the second has two.
    blocks = np.array([0, 32, 32 + 64, 32 + 96], np.int32)
    places = _native.QueryPlaces(positions, np.repeat([0, 1, 3], lengths).astype(np.int32), blocks)
    device.attention(shape, q, places, keys, values, capacity, out)
    tolerance = 1e-4 if device.kv_element_bytes == 4 else BF16_ATTENTION
    np.testing.assert_allclose(out, _attention(q, k, v, lengths, heads, kv_heads), rtol=tolerance, atol=tolerance)


def _attention(q, k, v, lengths, heads, kv_heads):
    out, begin, dim = np.empty_like(q, np.float64), 0, q.shape[1] // heads
    for n in lengths:
        rows = slice(begin, begin + n)
        for h in range(heads):
            columns = slice(h * dim, (h + 1) * dim)
            kv = slice(h // (heads // kv_heads) * dim, (h // (heads // kv_heads) + 1) * dim)
            scores = q[rows, columns].astype(np.float64) @ k[rows, kv].T * dim**-0.5
            scores[np.triu_indices(n, 1)] = -np.inf
            p = np.exp(scores - scores.max(1, keepdims=True))
            out[rows, columns] = p / p.sum(1, keepdims=True) @ v[rows, kv]
        begin += n
    return out


def test_routing_breaks_ties_by_id_and_normalises_on_request():
    logits = np.zeros((2, 16), np.float32)
    logits[1, [3, 5]] = 2.0
    logits[:, 6:] = 100.0  # lanes beyond the six experts
    ids, weights = np.empty((2, 3), np.int32), np.empty((2, 3), np.float32)
    _native.route(_native.Routing(6, 3), logits, ids, weights)
    assert ids.tolist() == [[0, 1, 2], [3, 5, 0]]
    p = np.exp([0, 0, 0, 2, 0, 2]) / np.exp([0, 0, 0, 2, 0, 2]).sum()
    np.testing.assert_allclose(weights[1], p[[3, 5, 0]], rtol=1e-6)
    _native.route(_native.Routing(6, 3, normalise=True), logits, ids, weights)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)


def test_bad_arguments_raise_and_never_reach_the_kernels():
    device = _native.CpuDevice(1)
    with pytest.raises(ValueError, match="group"):
        _native.Matrix(32, 48, 4, 48)
    matrix = _native.Matrix(32, 64, 4, 64)
    with pytest.raises(ValueError, match="do not fit"):
        device.matmul(matrix, 0, np.zeros((1, 32), np.float32), np.zeros((1, 32), np.float32))
    with pytest.raises(TypeError):
        device.matmul(matrix, 0, np.zeros((1, 64), np.float64), np.zeros((1, 32), np.float32))
    with pytest.raises(ValueError, match="threads"):
        _native.CpuDevice(0)


_VARIANT_PROGRAM = """
import sys, numpy as np
sys.path.insert(0, {tests!r})
from kernel_results import variant_results
np.savez(sys.argv[1], **variant_results())
"""


@pytest.mark.parametrize("variant", _native.variants())
def test_every_variant_gives_the_same_integers(variant, tmp_path, monkeypatch):
    results = {}
    for name in (variant, "portable"):
        program = _VARIANT_PROGRAM.format(tests=str(ROOT / "tests/support"))
        monkeypatch.setenv("ESTREAM_KERNELS", name)
        subprocess.run([sys.executable, "-c", program, str(tmp_path / f"{name}.npz")], check=True)
        results[name] = np.load(tmp_path / f"{name}.npz")
    for key, portable in results["portable"].items():
        if key.startswith("exact_"):
            np.testing.assert_array_equal(results[variant][key], portable, err_msg=key)
        else:
            np.testing.assert_allclose(
                results[variant][key],
                portable,
                rtol=VARIANT_RELATIVE,
                atol=VARIANT_RELATIVE * np.abs(portable).max(),
                err_msg=key,
            )


def test_an_unknown_variant_is_refused(monkeypatch):
    monkeypatch.setenv("ESTREAM_KERNELS", "sse9")
    run = subprocess.run(
        [sys.executable, "-c", "from estream import _native; _native.CpuDevice(1)"], capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert "ESTREAM_KERNELS is 'sse9', but this machine offers" in run.stderr
