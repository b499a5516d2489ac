"""Equalisation: moves powers of two between a norm and the columns that read it, so that no channel stands out.

Take a channel whose norm weight is 64 times the others', and whose columns are 1/64 of theirs. In float32 this is harmless. In
a quantised product it uses up the codes of its group's activations, and its own weights lose precision. Multiplying its
columns by 64 and dividing its norm weight by 64 does not change the layer's function, and is exact in floating point. The same
holds inside an expert, since SwiGLU is linear in ``up``: a column of ``down`` against a row of ``up``.

The idea is SmoothQuant's (arXiv 2211.10438). This version needs no data, since it only looks at the weights' magnitudes. A
channel within a factor of 2^1.5 of the median stays as it is, bit for bit.
"""

from collections.abc import Iterable

import numpy as np

from estream import _native

#: log2 of a column's magnitude over the median: smaller differences are common and harmless.
_SMALLEST_EXPONENT = 1.5
#: Columns with larger differences count as zero: scaling would take them out of the range of fp16 scales.
_LARGEST_EXPONENT = 16

#: A layer's column magnitudes are estimated from this many experts, and from this many rows of each.
SAMPLED_EXPERTS = 8
SAMPLED_ROWS = 128


def column_magnitudes(matrices: Iterable[tuple[np.ndarray, str]], channels: int) -> np.ndarray:
    """Return the root mean square of each column over all matrices: float64 [channels]; zeros without matrices.

    ``matrices`` yields [any, channels] with its type: float32, or bfloat16 or float16 as their bits.
    """
    total, rows = np.zeros(channels), 0
    for matrix, dtype in matrices:
        _native.column_squares(np.ascontiguousarray(matrix).reshape(-1).view(np.uint8), dtype, total)
        rows += len(matrix)
    return np.asarray(np.sqrt(total / max(rows, 1)))


def balancing_exponents(magnitudes: np.ndarray) -> np.ndarray:
    """Return k, int32 [channels], such that 2^k times each column comes closest to the median magnitude.

    k is 0 for a column within 2^1.5 of the median, and for a column of zeros.
    """
    nonzero = magnitudes[magnitudes > 0.0]
    if not nonzero.size:
        return np.zeros(magnitudes.shape, np.int32)
    distance = np.log2(np.median(nonzero)) - np.log2(np.where(magnitudes > 0.0, magnitudes, np.median(nonzero)))
    scaled = (np.abs(distance) > _SMALLEST_EXPONENT) & (np.abs(distance) <= _LARGEST_EXPONENT)
    return np.where(scaled, np.rint(distance), 0.0).astype(np.int32)


def scale(values: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Return ``values`` * 2^``exponents``, float32, exact; ``values`` itself if all exponents are 0."""
    return np.ldexp(values, exponents) if exponents.any() else values


def evenly_spaced(count: int, most: int) -> range:
    """At most ``most`` numbers of 0..count-1, at equal distances."""
    return range(0, count, -(-count // most))
