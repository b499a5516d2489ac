"""What pages are made of: packed matrices and float arrays, one after another (docs/package-format.md)."""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

from estream.host.sizes import round_up

PANEL = 32
SIMD_WIDTH = 16
GROUPS = (128, 64, 32)

PART_ALIGNMENT = 64


def group_for(inputs: int, group: int) -> int:
    """The largest of ``group``, 64 and 32 that divides ``inputs``; else 32, and the inputs are padded with zeros."""
    return next((g for g in GROUPS if g <= group and inputs % g == 0), GROUPS[-1])


@dataclass(frozen=True)
class MatrixPart:
    """A quantised matrix [outputs, inputs] in panels of 32 outputs (docs/package-format.md).

    ``inputs`` is padded to whole groups, ``source_inputs`` is what the checkpoint has.
    """

    name: str
    offset: int
    outputs: int
    inputs: int
    source_inputs: int
    bits: int
    group: int

    @property
    def panels(self) -> int:
        return -(-self.outputs // PANEL)

    @property
    def groups(self) -> int:
        return self.inputs // self.group

    @property
    def block_bytes(self) -> int:
        """Bytes of one group of one panel: its codes, then 32 fp16 scales."""
        return PANEL * self.group * self.bits // 8 + 2 * PANEL

    @property
    def bytes(self) -> int:
        return self.panels * self.groups * self.block_bytes

    @property
    def packed(self) -> bool:
        return True

    @property
    def weights(self) -> int:
        return self.outputs * self.source_inputs


@dataclass(frozen=True)
class FloatPart:
    """A float32 array, in C order."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return 4 * prod(self.shape)

    @property
    def packed(self) -> bool:
        return False

    @property
    def weights(self) -> int:
        return 0


@dataclass(frozen=True)
class TensorPart:
    """An input of a compiled graph, in C order. ``packed``: it belongs to a quantised matrix; its codes have ``bits``."""

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: Literal["float16", "uint8", "int32"]
    packed: bool
    bits: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * {"float16": 2, "uint8": 1, "int32": 4}[self.dtype]

    @property
    def weights(self) -> int:
        return self.bytes * 8 // self.bits if self.bits else 0


#: ``packed`` says whether a part holds a quantised matrix or some of it, ``weights`` how many quantised weights.
Part = MatrixPart | FloatPart | TensorPart


@dataclass(frozen=True)
class PageLayout:
    parts: tuple[Part, ...]

    @cached_property
    def bytes(self) -> int:
        return self.parts[-1].offset + self.parts[-1].bytes

    @cached_property
    def _by_name(self) -> dict[str, Part]:
        return {part.name: part for part in self.parts}

    def matrix(self, name: str) -> MatrixPart:
        part = self._by_name[name]
        assert isinstance(part, MatrixPart)
        return part

    def floats(self, name: str) -> FloatPart:
        part = self._by_name[name]
        assert isinstance(part, FloatPart)
        return part

    def offset(self, name: str) -> int:
        """Where a part begins that is never a page's first; 0 where the page has none of that name."""
        return self._by_name[name].offset if name in self._by_name else 0

    def has(self, name: str) -> bool:
        return name in self._by_name


class PageBuilder:
    """Lays parts one after another."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._parts: list[MatrixPart | FloatPart] = []
        self._end = 0

    def _place(self, part: MatrixPart | FloatPart) -> None:
        self._parts.append(part)
        self._end = round_up(part.offset + part.bytes, PART_ALIGNMENT)

    def matrix(self, name: str, outputs: int, inputs: int, bits: int) -> None:
        group = group_for(inputs, self._group)
        self._place(MatrixPart(name, self._end, outputs, round_up(inputs, group), inputs, bits, group))

    def floats(self, name: str, *shape: int) -> None:
        self._place(FloatPart(name, self._end, shape))

    def bias(self, name: str, outputs: int) -> None:
        """What is added to a matrix's outputs, padded to its panels."""
        self.floats(name, round_up(outputs, PANEL))

    def layout(self) -> PageLayout:
        return PageLayout(tuple(self._parts))
