"""Decoders of GPTQ and AWQ: 4-bit codes, eight per 32-bit word, stored transposed, with a zero and a scale per group."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from estream.checkpoint.decoders import Decoder, expect, read_scales
from estream.checkpoint.shards import StoredTensor
from estream.errors import CheckpointError


@dataclass(frozen=True)
class PackedInt4:
    """The tensors of a matrix, which GPTQ and AWQ store as [inputs, outputs]. ``group`` inputs share a scale; None: all."""

    codes: StoredTensor
    zeros: StoredTensor
    scales: StoredTensor
    group: int | None


@dataclass(frozen=True)
class Int4Tensor(Decoder, ABC):
    """Codes 0..15; a value is (code - zero) * scale. ``group`` inputs of an output share a zero and a scale.

    Values are exact in float32: a scale has 11 significant bits, the difference 5.
    """

    parts: PackedInt4
    #: Outputs that are decoded at once; bounds the memory.
    outputs_at_once: ClassVar[int] = 256

    @property
    @abstractmethod
    def inputs(self) -> int: ...

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
                f"{self.file.name}: tensor '{self.stored.name}' has {self.inputs} inputs and {self.outputs} outputs; expected "
                f"multiples of the group, {self.group}, and of 8"
            )
        expect(self.parts.scales, (groups, self.outputs), dtype="F16")
        expect(self.parts.zeros, (groups, self.outputs // 8), dtype="I32")

    @abstractmethod
    def _codes(self, packed: np.ndarray, first: int, count: int) -> np.ndarray:
        """Unpack the codes of outputs [first, first + count): int8 [inputs, count]."""

    @abstractmethod
    def _zeros(self, packed: np.ndarray) -> np.ndarray:
        """Unpack the zeros: int8 [groups, outputs]."""

    def _read(self, first: int, count: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Codes minus zeros, int8 [count, inputs], and their scales, float32 [count, groups]."""
        count = self.outputs - first if count is None else count
        packed = self.parts.codes.read_rows()
        scales = read_scales(self.parts.scales)[:, first : first + count].T
        zeros = self._zeros(self.parts.zeros.read_rows())
        codes = np.empty((count, self.inputs), np.int8)
        for begin in range(0, count, self.outputs_at_once):
            outputs = slice(first + begin, first + min(begin + self.outputs_at_once, count))
            grouped = self._codes(packed, outputs.start, outputs.stop - outputs.start).reshape(len(zeros), self.group, -1)
            codes[begin : begin + grouped.shape[2]] = (grouped - zeros[:, None, outputs]).reshape(self.inputs, -1).T
        return codes, scales

    def read_rows(self, first: int = 0, count: int | None = None) -> np.ndarray:
        codes, scales = self._read(first, count)
        values = codes.astype(np.float32).reshape(len(codes), -1, self.group)
        values *= scales[:, :, None]
        return values.reshape(len(codes), -1)

    def read_codes(self, first: int = 0, count: int | None = None) -> "TensorCodes | None":
        """Return rows as codes with fp16 scales; None if a code lies outside -8..7."""
        codes, scales = self._read(first, count)
        if codes.min(initial=0) < -8 or codes.max(initial=0) > 7:
            return None
        return TensorCodes(codes, np.ascontiguousarray(scales).astype(np.float16).view(np.uint16))


@dataclass(frozen=True)
class TensorCodes:
    """Codes int8 [rows, columns], and their scales, fp16 bits in uint16 [rows, groups]."""

    codes: np.ndarray
    scales: np.ndarray


def _unpack(words: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Unpack 32-bit words [a, b] to int8 [a, b, 8]; ``positions`` says which nibble, from the lowest, holds each code."""
    return (words.view(np.uint32)[..., None] >> (4 * positions).astype(np.uint32) & 15).astype(np.int8)


@dataclass(frozen=True)
class GptqTensor(Int4Tensor):
    """GPTQ: a word holds 8 inputs of one output, the first in its lowest bits. ``zero_offset`` is added to stored zeros.

    ``g_idx`` gives each input's group. Only consecutive groups are supported (no act-order).
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
        return _unpack(packed[:, first : first + count], np.arange(8)).transpose(0, 2, 1).reshape(-1, count)

    def _zeros(self, packed: np.ndarray) -> np.ndarray:
        return _unpack(packed, np.arange(8)).reshape(len(packed), -1) + self.zero_offset

    def _read(self, first: int, count: int | None) -> tuple[np.ndarray, np.ndarray]:
        if self.g_idx is not None:
            group_of_input = self.g_idx.read_rows().reshape(-1)
            if not np.array_equal(group_of_input, np.arange(self.inputs) // self.group):
                raise CheckpointError(
                    f"{self.g_idx.file.name}: tensor '{self.g_idx.name}' permutes the inputs (act-order), which is not "
                    "supported; convert the unquantised checkpoint, or one quantised with desc_act false"
                )
        return super()._read(first, count)


@dataclass(frozen=True)
class AwqTensor(Int4Tensor):
    """AWQ (version "gemm"): a word holds one input of 8 outputs, output 0, 2, 4, 6, 1, 3, 5, 7 from its lowest bits up."""

    #: The nibble of a word that holds output 0..7.
    POSITIONS: ClassVar[np.ndarray] = np.array([0, 4, 1, 5, 2, 6, 3, 7])

    def __post_init__(self) -> None:
        expect(self.stored, (self.inputs, self.outputs // 8), dtype="I32")
        self._check_parts()

    @property
    def inputs(self) -> int:
        return self.stored.shape[0]

    def _codes(self, packed: np.ndarray, first: int, count: int) -> np.ndarray:
        words = packed[:, first // 8 : -(-(first + count) // 8)]
        start = first % 8
        return _unpack(words, self.POSITIONS).reshape(len(words), -1)[:, start : start + count]

    def _zeros(self, packed: np.ndarray) -> np.ndarray:
        return _unpack(packed, self.POSITIONS).reshape(len(packed), -1)
