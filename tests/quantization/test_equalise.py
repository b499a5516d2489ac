"""Channels that stand out."""

import numpy as np

from estream.quantization.equalise import balancing_exponents, scale


def test_only_unusual_channels_move_and_by_powers_of_two():
    magnitudes = np.array([1.0, 2.0, 0.5, 1.1, 1 / 64, 100.0, 0.0, 0.9])
    exponents = balancing_exponents(magnitudes)
    np.testing.assert_array_equal(exponents, [0, 0, 0, 0, 6, -7, 0, 0])
    np.testing.assert_array_equal(scale(np.ones(8, np.float32), exponents), np.exp2(exponents).astype(np.float32))
    assert not balancing_exponents(np.zeros(4)).any()
