"""Moving powers of two between channels, so that none stands out, without changing what a layer computes.

A channel whose norm weight is 64 times the others', and whose columns are a 64th of theirs, is harmless in float32 and ruins
both sides of a quantised product: it takes the codes of its group's activations, and loses its own weights' precision.
Multiplying its columns by 64 and dividing what feeds them by 64 is exact in floating point. The same holds inside an
expert, since SwiGLU is linear in ``up``: a column of ``down`` against a row of ``up``.

The idea is SmoothQuant's (arXiv 2211.10438); here it needs no data, because only the weights' own magnitudes are looked at,
and a channel within a factor of 2.8 of the usual stays as it is, bit for bit.
"""

from collections.abc import Iterable

import numpy as np

from estream import _native

#: Channels whose columns are within 2^1.5 of the median are usual: differences of that size are everywhere and harmless.
_USUAL = 1.5
#: Beyond this a column counts as zero: it would be moved out of the range of fp16 scales.
_LARGEST = 16

#: Of how many experts, and of how many rows of each, a layer's column magnitudes are estimated.
SAMPLED_EXPERTS = 8
SAMPLED_ROWS = 128


def column_magnitudes(matrices: Iterable[tuple[np.ndarray, str]], channels: int) -> np.ndarray:
    """Root mean square of each column, float64 [channels], over matrices [any, channels] in float32, or in bfloat16 or
    float16 as their bits, each with its dtype; zeros where there are none.
    """
    total, rows = np.zeros(channels), 0
    for matrix, dtype in matrices:
        _native.column_squares(np.ascontiguousarray(matrix).reshape(-1).view(np.uint8), dtype, total)
        rows += len(matrix)
    return np.asarray(np.sqrt(total / max(rows, 1)))


def balancing_exponents(magnitudes: np.ndarray) -> np.ndarray:
    """The powers k, int32 [channels], by which columns of these magnitudes become usual when multiplied by 2^k.

    0 for a channel that is usual already, and for one whose columns are zero.
    """
    usual = magnitudes[magnitudes > 0.0]
    if not usual.size:
        return np.zeros(magnitudes.shape, np.int32)
    distance = np.log2(np.median(usual)) - np.log2(np.where(magnitudes > 0.0, magnitudes, np.median(usual)))
    moved = (np.abs(distance) > _USUAL) & (np.abs(distance) <= _LARGEST)
    return np.where(moved, np.rint(distance), 0.0).astype(np.int32)


def scale(values: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """``values`` * 2^``exponents``, float32, exact; the array itself where there is nothing to do."""
    return np.ldexp(values, exponents) if exponents.any() else values


def evenly(count: int, sampled: int) -> range:
    """At most ``sampled`` of 0..count-1, evenly spread."""
    return range(0, count, -(-count // sampled))
