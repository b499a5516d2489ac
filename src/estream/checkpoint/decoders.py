"""Decoders: compressed tensors that read as float32 matrices.

A decoder combines a stored tensor with the tensors of its scales. A read holds only its rows in memory, and all codes of the
matrix if it is stored transposed. Values are exact, except that a product of more than 24 bits is rounded once to float32.
GPTQ and AWQ are in ``int4.py``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from estream.checkpoint.shards import StoredTensor
from estream.errors import CheckpointError


class RowTensor(Protocol):
    """A tensor that is read by rows, stored uncompressed or decoded. ``dtype`` is the safetensors name of the rows' type."""

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> Path: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

    def read_rows(self, first: int = 0, count: int | None = None) -> np.ndarray:
        """Return rows [first, first + count) as [count, columns]. All dimensions but the last count as rows."""


def widen(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Convert to float32 from float32, or from float16 or bfloat16 bits in uint16. The shape stays."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype == "float16" else bits.view(np.float32)


def _e4m3_values() -> np.ndarray:
    """The 256 values of float8_e4m3fn: exponent bias 7, no infinities, and NaN where all bits but the sign are set."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_E4M3 = _e4m3_values()
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
#: The two values of each byte that holds two e2m1 codes, low half first: float32 [256, 2].
_E2M1_PAIRS = np.stack([_E2M1[np.arange(256) & 15], _E2M1[np.arange(256) >> 4]], 1)
#: e8m0: code c is 2^(c - 127); 255 is NaN.
_E8M0 = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan)).astype(np.float32)

_FLOAT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SCALE_TYPES = (*_FLOAT_TYPES, "F8_E8M0", "U8")


def read_scales(tensor: StoredTensor, first: int = 0, count: int | None = None) -> np.ndarray:
    """Read rows of scales as float32 [count, columns].

    Raises:
        CheckpointError: the type cannot hold scales, or a scale is not finite.

    """
    if tensor.dtype not in _SCALE_TYPES:
        supported = ", ".join(_SCALE_TYPES)
        raise CheckpointError(
            f"{tensor.file.name}: tensor '{tensor.name}' holds scales as {tensor.dtype}; supported are {supported}"
        )
    rows = tensor.read_rows(first, count)
    values = widen(rows, _FLOAT_TYPES[tensor.dtype]) if tensor.dtype in _FLOAT_TYPES else _E8M0[rows]
    if not np.isfinite(values).all():
        raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' holds scales that are not finite")
    return values


def expect(tensor: StoredTensor, *shapes: tuple[int, ...], dtype: str | None = None) -> None:
    """Raise CheckpointError unless the tensor has one of these shapes and, if given, this safetensors type."""
    if tensor.shape not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is {tensor.shape}, expected {wanted}")
    if dtype is not None and tensor.dtype != dtype:
        raise CheckpointError(f"{tensor.file.name}: tensor '{tensor.name}' is {tensor.dtype}, expected {dtype}")


@dataclass(frozen=True)
class Decoder:
    """A compressed matrix under its own ``name``; ``stored`` holds its codes."""

    name: str
    stored: StoredTensor
    dtype: ClassVar[str] = "F32"

    @property
    def file(self) -> Path:
        return self.stored.file


@dataclass(frozen=True)
class Fp8Tensor(Decoder):
    """float8_e4m3fn codes [..., rows, columns]; a value is its code times its scale.

    ``block`` (rows, columns) values share a scale; blocks at the end of either dimension may be smaller. Without ``block``
    there is one scale for the tensor, one for each matrix or one for each row of each matrix.
    """

    scales: StoredTensor
    block: tuple[int, int] | None

    def __post_init__(self) -> None:
        *lead, rows, columns = self.shape
        if self.block is None:
            flat = ((rows,),) if not lead else ((*lead, 1, 1), (*lead, rows))
            expect(self.scales, (), (1,), *flat, (*lead, rows, 1))
        else:
            expect(self.scales, (*lead, -(-rows // self.block[0]), -(-columns // self.block[1])))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def read_rows(self, first: int = 0, count: int | None = None) -> np.ndarray:
        values: np.ndarray = _E4M3[self.stored.read_rows(first, count)]
        if self.block is None:
            scales = read_scales(self.scales).reshape(-1)
            if scales.size == 1:
                values *= scales
            else:
                # Each scale is of as many rows.
                values *= scales[np.arange(first, first + len(values)) // (self.stored.rows // scales.size), None]
            return values
        rows, (block_rows, block_columns) = self.shape[-2], self.block
        row = np.arange(first, first + len(values))
        scale_row = row // rows * self.scales.shape[-2] + row % rows // block_rows
        scales = read_scales(self.scales, int(scale_row[0]), int(scale_row[-1] - scale_row[0]) + 1)
        for index in range(len(scales)):
            begin, end = np.searchsorted(scale_row, [scale_row[0] + index, scale_row[0] + index + 1])
            values[begin:end] *= np.repeat(scales[index], block_columns)[: self.shape[-1]]
        return values


@dataclass(frozen=True)
class Mxfp4Tensor(Decoder):
    """e2m1 codes [..., outputs, groups, 16], two per byte, and e8m0 scales [..., outputs, groups]; a group is 32 inputs.

    It reads as gpt-oss stores uncompressed experts, [..., inputs, outputs], so a read decodes whole matrices.
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
        """Decode outputs [first, first + count) to float32 [count, inputs]."""
        scales = read_scales(self.scales, first, count)
        groups = scales.shape[1]
        codes = self.stored.read_rows(first * groups, scales.size)
        values: np.ndarray = _E2M1_PAIRS[codes].reshape(-1, groups, 32)
        values *= scales[:, :, None]
        return values.reshape(len(scales), -1)
