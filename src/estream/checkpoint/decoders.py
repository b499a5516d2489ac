"""Compressed tensors that present themselves as float32 matrices.

A decoder is made of a stored tensor and the tensors with its scales. It is read by rows like any tensor, and holds no more
than the rows that are asked for (GPTQ and AWQ, which store a matrix transposed: its codes besides). Each value is what the
format says, exactly, or where a product needs more than 24 bits, rounded once to float32.
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


def _read_scales(tensor: StoredTensor, first: int = 0, count: int | None = None) -> np.ndarray:
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
class _Decoder:
    name: str
    stored: StoredTensor
    dtype: ClassVar[str] = "F32"

    @property
    def file(self) -> Path:
        return self.stored.file


@dataclass(frozen=True)
class Fp8Tensor(_Decoder):
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
            scales = _read_scales(self.scales).reshape(-1)
            values *= scales if scales.size == 1 else scales[first : first + len(values), None]
            return values
        rows, (height, width) = self.shape[-2], self.block
        row = np.arange(first, first + len(values))
        line = row // rows * self.scales.shape[-2] + row % rows // height
        scales = _read_scales(self.scales, int(line[0]), int(line[-1] - line[0]) + 1)
        for index in range(len(scales)):
            begin, end = np.searchsorted(line, [line[0] + index, line[0] + index + 1])
            values[begin:end] *= np.repeat(scales[index], width)[: self.shape[-1]]
        return values


@dataclass(frozen=True)
class Mxfp4Tensor(_Decoder):
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
        scales = _read_scales(self.scales, first, count)
        groups = scales.shape[1]
        codes = self.stored.read_rows(first * groups, scales.size)
        values: np.ndarray = _E2M1_PAIRS[codes].reshape(-1, groups, 32)
        values *= scales[:, :, None]
        return values.reshape(len(scales), -1)


@dataclass(frozen=True)
class PackedInt4:
    """The tensors of a GPTQ or AWQ matrix, which both store it transposed, [inputs, outputs]. ``group`` inputs share a
    scale; None: all.
    """

    codes: StoredTensor
    zeros: StoredTensor
    scales: StoredTensor
    group: int | None


@dataclass(frozen=True)
class Int4Tensor(_Decoder):
    """Codes 0..15; a value is (code - zero) * scale, zero and scale shared by ``group`` inputs of an output: exact in
    float32, since scales have 11 bits and the difference 5.
    """

    parts: PackedInt4
    #: Outputs that are decoded together: what bounds the memory.
    step: ClassVar[int] = 256

    @property
    def inputs(self) -> int:
        raise NotImplementedError

    @property
    def outputs(self) -> int:
        return self.parts.scales.columns

    @property
    def group(self) -> int:
        return self.parts.group or self.inputs

    @property
    def shape(self) -> tuple[int, ...]:
        return self.outputs, self.inputs

    def _check_parts(self) -> None:
        groups = self.inputs // self.group
        if self.inputs % self.group or self.outputs % 8:
            raise CheckpointError(
                f"{self.file.name}: tensor '{self.stored.name}' has {self.inputs} inputs and {self.outputs} outputs, which are "
                f"not whole groups of {self.group} and 8"
            )
        expect(self.parts.scales, (groups, self.outputs), dtype="F16")
        expect(self.parts.zeros, (groups, self.outputs // 8), dtype="I32")

    def _codes(self, packed: np.ndarray, first: int, count: int) -> np.ndarray:
        """Codes [inputs, count] of outputs [first, first + count), from the stored words."""
        raise NotImplementedError

    def _zeros(self, packed: np.ndarray) -> np.ndarray:
        """Zeros [groups, outputs] as they are subtracted, from the stored words."""
        raise NotImplementedError

    def _read(self, first: int, count: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Codes less zeros, int8 [count, inputs], and their scales, float32 [count, groups]."""
        count = self.outputs - first if count is None else count
        packed = self.parts.codes.read_rows()
        scales = _read_scales(self.parts.scales)[:, first : first + count].T
        zeros = self._zeros(self.parts.zeros.read_rows())
        codes = np.empty((count, self.inputs), np.int8)
        for begin in range(0, count, self.step):
            here = slice(first + begin, first + min(begin + self.step, count))
            grouped = self._codes(packed, here.start, here.stop - here.start).reshape(len(zeros), self.group, -1)
            codes[begin : begin + grouped.shape[2]] = (grouped - zeros[:, None, here]).reshape(self.inputs, -1).T
        return codes, scales

    def read_rows(self, first: int = 0, count: int | None = None) -> np.ndarray:
        codes, scales = self._read(first, count)
        values = codes.astype(np.float32).reshape(len(codes), -1, self.group)
        values *= scales[:, :, None]
        return values.reshape(len(codes), -1)

    def read_codes(self, first: int = 0, count: int | None = None) -> "TensorCodes | None":
        """Rows as codes in -8..7 with fp16 scales; None where one lies outside."""
        codes, scales = self._read(first, count)
        if codes.min(initial=0) < -8 or codes.max(initial=0) > 7:
            return None
        return TensorCodes(codes, np.ascontiguousarray(scales).astype(np.float16).view(np.uint16))


@dataclass(frozen=True)
class TensorCodes:
    """Codes int8 [rows, columns] and the scales that they are multiplied by, fp16 bits in uint16 [rows, groups]."""

    codes: np.ndarray
    scales: np.ndarray


def _nibbles(words: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The eight codes of each word [a, b], taken from the given places: [a, b, 8]."""
    return (words.view(np.uint32)[..., None] >> (4 * order).astype(np.uint32) & 15).astype(np.int8)


@dataclass(frozen=True)
class GptqTensor(Int4Tensor):
    """GPTQ: a word holds 8 inputs of one output, the first in its lowest bits; zeros are stored less 1 (``zero_offset``).

    ``g_idx`` says which group an input belongs to: only whole groups in order are read (no act-order).
    """

    g_idx: StoredTensor | None
    zero_offset: int

    def __post_init__(self) -> None:
        expect(self.stored, (self.inputs // 8, self.outputs), dtype="I32")
        self._check_parts()
        if self.g_idx is not None:
            expect(self.g_idx, (self.inputs,), dtype="I32")

    @property
    def inputs(self) -> int:
        return 8 * self.stored.shape[0]

    def _codes(self, packed: np.ndarray, first: int, count: int) -> np.ndarray:
        return _nibbles(packed[:, first : first + count], np.arange(8)).transpose(0, 2, 1).reshape(-1, count)

    def _zeros(self, packed: np.ndarray) -> np.ndarray:
        return _nibbles(packed, np.arange(8)).reshape(len(packed), -1) + self.zero_offset

    def _read(self, first: int, count: int | None) -> tuple[np.ndarray, np.ndarray]:
        if self.g_idx is not None:
            order = self.g_idx.read_rows().reshape(-1)
            if not np.array_equal(order, np.arange(self.inputs) // self.group):
                raise CheckpointError(
                    f"{self.g_idx.file.name}: tensor '{self.g_idx.name}' permutes the inputs (act-order), which is not read; "
                    "convert the unquantised checkpoint, or one quantised with desc_act false"
                )
        return super()._read(first, count)


@dataclass(frozen=True)
class AwqTensor(Int4Tensor):
    """AWQ (version "gemm"): a word holds one input of 8 outputs, output 0, 2, 4, 6, 1, 3, 5, 7 from its lowest bits up."""

    #: Where in a word output 0..7 lies.
    PLACES: ClassVar[np.ndarray] = np.array([0, 4, 1, 5, 2, 6, 3, 7])

    def __post_init__(self) -> None:
        expect(self.stored, (self.inputs, self.outputs // 8), dtype="I32")
        self._check_parts()

    @property
    def inputs(self) -> int:
        return self.stored.shape[0]

    def _codes(self, packed: np.ndarray, first: int, count: int) -> np.ndarray:
        words = packed[:, first // 8 : -(-(first + count) // 8)]
        start = first % 8
        return _nibbles(words, self.PLACES).reshape(len(words), -1)[:, start : start + count]

    def _zeros(self, packed: np.ndarray) -> np.ndarray:
        return _nibbles(packed, self.PLACES).reshape(len(packed), -1)
