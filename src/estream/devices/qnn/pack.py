"""Integer matrices with block scales, as the NPU's graphs read them.

A matrix W [inputs K, outputs N] is codes q [K, N] times scales s [K / g, N], one for each group of g inputs. The scales are
fp16.

- 4 bits, q in -8..7: byte [r, n] holds q[r, n] + 8 in its low half and q[r + K / 2, n] + 8 in its high half, for r < K / 2.
  The graph unpacks it in floating point: with t = (byte - 128) / 16, floor(t) is the high code, and what is left, less a
  half, is the low code / 16. So the scales of the lower half of K are stored times 16, which is exact.
- 8 bits, q in -127..127: byte [k, n] = q[k, n] + 128.

Halves of K, and not neighbours, share a byte: both halves stay whole groups, and no transposition is needed.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from estream.errors import OptionError

_SIXTEEN = np.float16(16)


@dataclass(frozen=True)
class MatrixSpec:
    """A packed matrix [inputs, outputs]."""

    name: str
    inputs: int
    outputs: int
    bits: int
    group: int

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise OptionError(f"matrix '{self.name}' has {self.bits} bits: the NPU's graphs read 4 or 8")
        step = self.group * (2 if self.bits == 4 else 1)
        if self.inputs % step:
            raise OptionError(
                f"matrix '{self.name}' has {self.inputs} inputs: "
                f"groups of {self.group} at {self.bits} bits need a multiple of {step}"
            )

    @property
    def byte_groups(self) -> int:
        """Groups of bytes: of 4-bit codes, two groups share one."""
        return self.inputs // self.group // (2 if self.bits == 4 else 1)

    def parts(self) -> tuple[tuple[str, Literal["uint8", "float16"], tuple[int, ...]], ...]:
        """Name, type and shape of each array."""
        n, codes, scales = self.name, (self.byte_groups, self.group, self.outputs), (self.byte_groups, 1, self.outputs)
        if self.bits == 8:
            return (f"{n}_codes", "uint8", codes), (f"{n}_scales", "float16", scales)
        return (f"{n}_codes", "uint8", codes), (f"{n}_low", "float16", scales), (f"{n}_high", "float16", scales)

    @property
    def bytes(self) -> int:
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for _, dtype, shape in self.parts())


def pack_matrix(spec: MatrixSpec, codes: np.ndarray, scales: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a matrix, by the names that ``spec.parts`` gives.

    Args:
        spec: the matrix.
        codes: int8 [inputs, outputs].
        scales: float16 [inputs / group, outputs].

    Raises:
        OptionError: shapes or types are not those of ``spec``, or a scale times 16 leaves fp16.

    """
    _expect(spec, "codes", codes, np.int8, (spec.inputs, spec.outputs))
    _expect(spec, "scales", scales, np.float16, (spec.inputs // spec.group, spec.outputs))
    shape, scale_shape = spec.parts()[0][2], spec.parts()[1][2]
    if spec.bits == 8:
        shifted = (codes.view(np.uint8) ^ np.uint8(128)).reshape(shape)
        return {f"{spec.name}_codes": shifted, f"{spec.name}_scales": scales.reshape(scale_shape)}
    half = spec.inputs // 2
    shifted = (codes + np.int8(8)).view(np.uint8)
    packed = (shifted[half:] << np.uint8(4)) | shifted[:half]
    low, high = scales[: spec.byte_groups], scales[spec.byte_groups :]
    if low.size and float(np.abs(low).max()) > float(np.finfo(np.float16).max / _SIXTEEN):
        raise OptionError(f"matrix '{spec.name}' has a scale of {np.abs(low).max()}: the NPU's 4-bit layout holds up to 4094")
    return {
        f"{spec.name}_codes": packed.reshape(shape),
        f"{spec.name}_low": (low * _SIXTEEN).reshape(scale_shape),
        f"{spec.name}_high": high.reshape(scale_shape).copy(),
    }


def unpack_matrix(spec: MatrixSpec, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of :func:`pack_matrix`: codes int8 [inputs, outputs] and scales float16 [inputs / group, outputs]."""
    packed, groups = arrays[f"{spec.name}_codes"].reshape(-1, spec.outputs), spec.inputs // spec.group
    if spec.bits == 8:
        return (packed ^ np.uint8(128)).view(np.int8), arrays[f"{spec.name}_scales"].reshape(groups, spec.outputs)
    shifted = np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)])
    low, high = (arrays[f"{spec.name}_{half}"].reshape(-1, spec.outputs) for half in ("low", "high"))
    return shifted.astype(np.int8) - np.int8(8), np.concatenate([low / _SIXTEEN, high])


def dequantise(spec: MatrixSpec, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The weights that the arrays stand for, float32 [inputs, outputs]."""
    codes, scales = unpack_matrix(spec, arrays)
    return codes.astype(np.float32) * np.repeat(scales.astype(np.float32), spec.group, axis=0)


def _expect(spec: MatrixSpec, what: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise OptionError(
            f"{what} of matrix '{spec.name}': expected {np.dtype(dtype)} {list(shape)}, found {array.dtype} {list(array.shape)}"
        )
