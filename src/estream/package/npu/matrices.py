"""Integer matrices with block scales, as the NPU's graphs read them.

A matrix W [inputs K, outputs N] is codes q [K, N] times scales s [K / g, N], one for each group of g inputs. The scales are
fp16.

- 4 bits, q in -8..7: byte [r, n] holds q[r, n] + 8 in its low half and q[r + K / 2, n] + 8 in its high half, for r < K / 2.
  The graph unpacks it in floating point: with t = (byte - 128) / 16, floor(t) is the high code, and what is left, less a
  half, is the low code / 16. So the scales of the lower half of K are stored times 16, which is exact.
- 8 bits, q in -127..127: byte [k, n] = q[k, n] + 128.

A byte holds codes of both halves of K, not of neighbours. So both halves stay whole groups, and nothing is transposed.

A large matrix is cut along its outputs into blocks, each with arrays of its own. A graph unpacks one block at a time in the
NPU's memory. A whole matrix in fp16 would not fit there.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from estream.errors import OptionError

_SIXTEEN = np.float16(16)


@dataclass(frozen=True)
class MatrixSpec:
    """A packed matrix [inputs, outputs], in ``blocks`` of equal size. ``group`` inputs share a scale."""

    name: str
    inputs: int
    outputs: int
    bits: int
    group: int
    blocks: int = 1

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise OptionError(f"matrix '{self.name}' has {self.bits} bits: the NPU's graphs read 4 or 8")
        if self.outputs % self.blocks:
            raise OptionError(f"matrix '{self.name}' has {self.outputs} outputs, which {self.blocks} blocks do not divide")
        step = self.group * (2 if self.bits == 4 else 1)
        if self.inputs % step:
            raise OptionError(
                f"matrix '{self.name}' has {self.inputs} inputs: "
                f"groups of {self.group} at {self.bits} bits need a multiple of {step}"
            )

    @property
    def byte_groups(self) -> int:
        """Groups of bytes. Two groups of 4-bit codes share the bytes of one."""
        return self.inputs // self.group // (2 if self.bits == 4 else 1)

    @property
    def block_names(self) -> tuple[str, ...]:
        """The beginnings of the arrays' names, one for each block."""
        return tuple(f"{self.name}{block}" for block in range(self.blocks)) if self.blocks > 1 else (self.name,)

    @property
    def block_outputs(self) -> int:
        return self.outputs // self.blocks

    def parts(self) -> tuple[tuple[str, Literal["uint8", "float16"], tuple[int, ...]], ...]:
        """Name, type and shape of each array, block after block."""
        return tuple(part for name in self.block_names for part in self._block_parts(name))

    def _block_parts(self, name: str) -> tuple[tuple[str, Literal["uint8", "float16"], tuple[int, ...]], ...]:
        codes, scales = (self.byte_groups, self.group, self.block_outputs), (self.byte_groups, 1, self.block_outputs)
        if self.bits == 8:
            return (f"{name}_codes", "uint8", codes), (f"{name}_scales", "float16", scales)
        return (f"{name}_codes", "uint8", codes), (f"{name}_low", "float16", scales), (f"{name}_high", "float16", scales)

    @property
    def bytes(self) -> int:
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for _, dtype, shape in self.parts())


def pack_matrix(spec: MatrixSpec, codes: np.ndarray, scales: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a matrix, by the names in ``spec.parts``.

    Args:
        spec: the matrix.
        codes: int8 [inputs, outputs].
        scales: float16 [inputs / group, outputs].

    Raises:
        OptionError: shapes or types are not those of ``spec``, or a scale times 16 leaves fp16.

    """
    _expect(spec, "codes", codes, np.int8, (spec.inputs, spec.outputs))
    _expect(spec, "scales", scales, np.float16, (spec.inputs // spec.group, spec.outputs))
    low = scales[: spec.byte_groups]
    if spec.bits == 4 and low.size and float(np.abs(low).max()) > float(np.finfo(np.float16).max / _SIXTEEN):
        raise OptionError(f"matrix '{spec.name}' has a scale of {np.abs(low).max()}: the NPU's 4-bit layout holds up to 4094")
    arrays: dict[str, np.ndarray] = {}
    for block in range(spec.blocks):
        columns = slice(block * spec.block_outputs, (block + 1) * spec.block_outputs)
        parts = spec.parts()[block * (len(spec.parts()) // spec.blocks) :]
        values = _pack(spec, np.ascontiguousarray(codes[:, columns]), scales[:, columns])
        arrays |= {name: value.reshape(shape) for (name, _, shape), value in zip(parts, values, strict=False)}
    return arrays


def _pack(spec: MatrixSpec, codes: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, ...]:
    """Codes and scales of one block."""
    if spec.bits == 8:
        return codes.view(np.uint8) ^ np.uint8(128), np.ascontiguousarray(scales)
    half = spec.inputs // 2
    shifted = (codes + np.int8(8)).view(np.uint8)
    packed = (shifted[half:] << np.uint8(4)) | shifted[:half]
    return packed, scales[: spec.byte_groups] * _SIXTEEN, np.ascontiguousarray(scales[spec.byte_groups :])


def unpack_matrix(spec: MatrixSpec, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of :func:`pack_matrix`: codes int8 [inputs, outputs] and scales float16 [inputs / group, outputs]."""
    blocks = [_unpack(spec, arrays, name) for name in spec.block_names]
    return np.concatenate([codes for codes, _ in blocks], axis=1), np.concatenate([scales for _, scales in blocks], axis=1)


def _unpack(spec: MatrixSpec, arrays: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    packed = arrays[f"{name}_codes"].reshape(-1, spec.block_outputs)
    if spec.bits == 8:
        scales = arrays[f"{name}_scales"].reshape(-1, spec.block_outputs)
        return (packed ^ np.uint8(128)).view(np.int8), scales
    shifted = np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)])
    low, high = (arrays[f"{name}_{half}"].reshape(-1, spec.block_outputs) for half in ("low", "high"))
    return shifted.astype(np.int8) - np.int8(8), np.concatenate([low / _SIXTEEN, high])


def dequantise(spec: MatrixSpec, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The weights, codes times scales, float32 [inputs, outputs]."""
    codes, scales = unpack_matrix(spec, arrays)
    return codes.astype(np.float32) * np.repeat(scales.astype(np.float32), spec.group, axis=0)


def _expect(spec: MatrixSpec, what: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise OptionError(
            f"{what} of matrix '{spec.name}': expected {np.dtype(dtype)} {list(shape)}, found {array.dtype} {list(array.shape)}"
        )
