"""Compressed tensors that present themselves as float32 matrices.

A decoder is made of a stored tensor and the tensors with its scales. It is read by rows like any tensor, and holds no more
than the rows that are asked for; where a matrix is stored transposed, its codes besides. Each value is what the format says,
exactly, or where a product needs more than 24 bits, rounded once to float32. GPTQ and AWQ are in ``int4.py``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from estream.checkpoint.shards import StoredTensor
from estream.errors import CheckpointError


class RowTensor(Protocol):
    """What a checkpoint's tensor offers, stored as it is or decoded. ``dtype`` is the safetensors name of what rows hold."""

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> Path: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

    def read_rows(self, first: int = 0, count: int | None = None) -> np.ndarray:
        """Rows [first, first + count) as [count, columns]; leading dimensions count as rows."""


def widen(bits: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values from float32, float16 bits or bfloat16 bits."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype == "float16" else bits.view(np.float32)


def _e4m3_values() -> np.ndarray:
    """All values of float8_e4m3fn: bias 7, no infinities, both NaNs with all bits set."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_E4M3 = _e4m3_values()
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
#: Both values of a byte of two e2m1 codes, the low half first.
_E2M1_PAIRS = np.stack([_E2M1[np.arange(256) & 15], _E2M1[np.arange(256) >> 4]], 1)
#: 2^(code - 127); 255 is NaN.
_E8M0 = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan)).astype(np.float32)

_WIDE = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_scales(tensor: StoredTensor, first: int = 0, count: int | None = None) -> np.ndarray:
    """float32 scales [count, columns], every one finite."""
    if tensor.dtype not in (*_WIDE, "F8_E8M0", "U8"):
        raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is {tensor.dtype}, which scales cannot be")
    rows = tensor.read_rows(first, count)
    values = widen(rows, _WIDE[tensor.dtype]) if tensor.dtype in _WIDE else _E8M0[rows]
    if not np.isfinite(values).all():
        raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' holds scales that are not finite")
    return values


def expect(tensor: StoredTensor, *shapes: tuple[int, ...], dtype: str | None = None) -> None:
    """Refuse a part of a compressed tensor that has none of these shapes, or another type."""
    if tensor.shape not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is {tensor.shape}, expected {wanted}")
    if dtype is not None and tensor.dtype != dtype:
        raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is {tensor.dtype}, expected {dtype}")


@dataclass(frozen=True)
class Decoder:
    name: str
    stored: StoredTensor
    dtype: ClassVar[str] = "F32"

    @property
    def file(self) -> Path:
        return self.stored.file


@dataclass(frozen=True)
class Fp8Tensor(Decoder):
    """float8_e4m3fn codes [..., rows, columns] and a scale for each block of ``block`` rows and columns, the last blocks of
    either direction cut short; ``block`` None: one scale for all, or one for each row. A value is its code times its scale.
    """

    scales: StoredTensor
    block: tuple[int, int] | None

    def __post_init__(self) -> None:
        *lead, rows, columns = self.shape
        if self.block is None:
            expect(self.scales, (), (1,), (rows,), (rows, 1))
        else:
            expect(self.scales, (*lead, -(-rows // self.block[0]), -(-columns // self.block[1])))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def read_rows(self, first: int = 0, count: int | None = None) -> np.ndarray:
        values: np.ndarray = _E4M3[self.stored.read_rows(first, count)]
        if self.block is None:
            scales = read_scales(self.scales).reshape(-1)
            values *= scales if scales.size == 1 else scales[first : first + len(values), None]
            return values
        rows, (height, width) = self.shape[-2], self.block
        row = np.arange(first, first + len(values))
        line = row // rows * self.scales.shape[-2] + row % rows // height
        scales = read_scales(self.scales, int(line[0]), int(line[-1] - line[0]) + 1)
        for index in range(len(scales)):
            begin, end = np.searchsorted(line, [line[0] + index, line[0] + index + 1])
            values[begin:end] *= np.repeat(scales[index], width)[: self.shape[-1]]
        return values


@dataclass(frozen=True)
class Mxfp4Tensor(Decoder):
    """e2m1 codes [..., outputs, groups, 16], two in a byte, and an e8m0 scale [..., outputs, groups] for 32 inputs each.

    It presents itself as its family stores it uncompressed: [..., inputs, outputs]. Reading decodes whole matrices.
    Source: OCP Microscaling Formats (MX) specification 1.0.
    """

    scales: StoredTensor

    def __post_init__(self) -> None:
        expect(self.stored, (*self.stored.shape[:-1], 16), dtype="U8")
        expect(self.scales, self.stored.shape[:-1], dtype="U8")

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, outputs, groups = self.scales.shape
        return (*lead, 32 * groups, outputs)

    def read_rows(self, first: int = 0, count: int | None = None) -> np.ndarray:
        inputs, outputs = self.shape[-2:]
        end = self.scales.rows // outputs * inputs if count is None else first + count
        rows = np.empty((end - first, outputs), np.float32)
        for matrix in range(first // inputs, -(-end // inputs)):
            begin, stop = max(first, matrix * inputs), min(end, (matrix + 1) * inputs)
            values = self._decode(matrix * outputs, outputs)
            rows[begin - first : stop - first] = values[:, begin - matrix * inputs : stop - matrix * inputs].T
        return rows

    def _decode(self, first: int, count: int) -> np.ndarray:
        """Outputs [first, first + count) as float32 [count, inputs]."""
        scales = read_scales(self.scales, first, count)
        groups = scales.shape[1]
        codes = self.stored.read_rows(first * groups, scales.size)
        values: np.ndarray = _E2M1_PAIRS[codes].reshape(-1, groups, 32)
        values *= scales[:, :, None]
        return values.reshape(len(scales), -1)
