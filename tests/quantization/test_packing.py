"""Rows in the order in which pages hold them."""

import numpy as np

from estream.quantization.float_parts import interleave_gate_up
from estream.quantization.packing import in_source_order
from estream.quantization.rows import MatrixRows, MatrixSource


def test_a_bias_is_brought_into_the_order_of_the_rows():
    order = interleave_gate_up(40, 96)
    source = MatrixSource((), order, "a page")
    rows = MatrixRows(source, "BF16", values=(np.zeros((80, 8), np.float32),), dtype="float32")
    bias = np.arange(80, dtype=np.float32)
    np.testing.assert_array_equal(in_source_order(np.where(order < 0, 0, bias[order]), rows), bias)
