"""Integer matrices in the layout that the NPU's graphs read."""

import numpy as np
import pytest

from estream.errors import OptionError
from estream.package.npu.matrices import MatrixSpec, dequantise, pack_matrix, unpack_matrix


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("bits", [4, 8])
def test_packing_is_inverted(bits, blocks, rng):
    spec = MatrixSpec("m", 128, 96, bits, 32, blocks)
    lowest, highest = (-8, 7) if bits == 4 else (-127, 127)
    codes = rng.integers(lowest, highest + 1, (128, 96), dtype=np.int8)
    scales = rng.standard_normal((4, 96)).astype(np.float16)
    arrays = pack_matrix(spec, codes, scales)
    assert [(n, a.dtype, a.shape) for n, a in arrays.items()] == [(n, np.dtype(d), s) for n, d, s in spec.parts()]
    assert sum(array.nbytes for array in arrays.values()) == spec.bytes
    found_codes, found_scales = unpack_matrix(spec, arrays)
    np.testing.assert_array_equal(found_codes, codes)
    np.testing.assert_array_equal(found_scales, scales)


def test_two_codes_of_four_bits_share_a_byte():
    """By hand: rows r and r + 32 of 64 in the low and the high half, each + 8; the lower rows' scales are stored times 16."""
    codes = np.zeros((64, 32), np.int8)
    codes[0, 0], codes[32, 0], codes[33, 5] = -8, 7, -1
    scales = np.full((2, 32), 0.5, np.float16)
    arrays = pack_matrix(MatrixSpec("m", 64, 32, 4, 32), codes, scales)
    assert arrays["m_codes"][0, 0, 0] == 0xF0
    assert arrays["m_codes"][0, 1, 5] == 0x78
    assert arrays["m_codes"][0, 2, 0] == 0x88
    assert set(arrays["m_low"].ravel()) == {8.0}
    assert set(arrays["m_high"].ravel()) == {0.5}


def test_weights_are_codes_times_scales():
    codes = np.arange(-32, 32, dtype=np.int8)[:, None] * np.ones((1, 32), np.int8)
    scales = np.repeat(np.array([[2.0], [0.5]], np.float16), 32, axis=1)
    spec = MatrixSpec("m", 64, 32, 8, 32)
    weights = dequantise(spec, pack_matrix(spec, codes, scales))
    assert weights[:, 3].tolist() == [2.0 * code for code in range(-32, 0)] + [0.5 * code for code in range(32)]


def test_packing_refuses_what_does_not_fit():
    with pytest.raises(OptionError, match="multiple of 64"):
        MatrixSpec("m", 96, 32, 4, 32)
    with pytest.raises(OptionError, match="4 or 8"):
        MatrixSpec("m", 96, 32, 2, 32)
    spec = MatrixSpec("m", 64, 32, 4, 32)
    with pytest.raises(OptionError, match="4094"):
        pack_matrix(spec, np.zeros((64, 32), np.int8), np.full((2, 32), 5000, np.float16))
    with pytest.raises(OptionError, match=r"expected int8 \[64, 32\]"):
        pack_matrix(spec, np.zeros((32, 32), np.int8), np.ones((2, 32), np.float16))
