"""Where each tensor lies inside a page, and the tape: all pages of a model in the order a sweep uses them.

Both follow from the model's config and how it is stored, so the manifest keeps neither and cannot contradict them.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from estream.models.config import ModelConfig
from estream.units import MiB, round_up

PANEL = 32
LANES = 16
GROUPS = (128, 64, 32)

#: File offsets and padded lengths of pages: what direct reads need on Linux and Windows alike.
PAGE_ALIGNMENT = 64 << 10
PART_ALIGNMENT = 64
LARGEST_EXPERT_PAGE = 32 * MiB
SMALLEST_EXPERT_SLICE = 16 * MiB
HEAD_PAGE = 8 * MiB

PageKind = Literal["attention", "router", "expert", "head"]


@dataclass(frozen=True)
class Quantization:
    """Bits of the experts and of everything else that is multiplied (attention, head), group size, and how large matrices
    are cut into pages: ``expert_slices`` equal parts of each expert, ``head_rows`` vocabulary rows in a page of the head.
    """

    expert_bits: int
    dense_bits: int
    group: int
    expert_slices: int
    head_rows: int

    @staticmethod
    def choose(config: ModelConfig, expert_bits: int, dense_bits: int, group: int) -> "Quantization":
        """Cut experts above 32 MiB into slices of at least 16 MiB along the intermediate size, the head into 8 MiB."""
        whole = Quantization(expert_bits, dense_bits, group, 1, PANEL)
        size, slices, width = expert_layout(config, whole).bytes, 1, config.moe.width
        if size > LARGEST_EXPERT_PAGE:
            step = group_for(width, group)
            most = max(size // SMALLEST_EXPERT_SLICE, 1)
            slices = next((n for n in range(most, 1, -1) if width % (n * step) == 0), 1)
        rows = max(1, HEAD_PAGE // _head_layout(config, whole, PANEL).bytes) * PANEL
        return Quantization(expert_bits, dense_bits, group, slices, rows)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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


@dataclass(frozen=True)
class FloatPart:
    """A float32 array, in C order."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        size = 4
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True)
class PageLayout:
    parts: tuple[MatrixPart | FloatPart, ...]

    @cached_property
    def bytes(self) -> int:
        return self.parts[-1].offset + self.parts[-1].bytes

    def matrix(self, name: str) -> MatrixPart:
        return next(p for p in self.parts if p.name == name and isinstance(p, MatrixPart))

    def floats(self, name: str) -> FloatPart:
        return next(p for p in self.parts if p.name == name and isinstance(p, FloatPart))

    def has(self, name: str) -> bool:
        return any(p.name == name for p in self.parts)


class _Builder:
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

    def layout(self) -> PageLayout:
        return PageLayout(tuple(self._parts))


@dataclass(frozen=True)
class PageSpec:
    """One page of the tape: what it holds, not yet where it lies. ``first`` is the first row (head) or intermediate
    unit (expert slice) that it holds, ``count`` how many.
    """

    kind: PageKind
    layer: int
    expert: int
    slice: int
    first: int
    count: int
    layout: PageLayout

    @property
    def bytes(self) -> int:
        return self.layout.bytes

    def __str__(self) -> str:
        if self.kind == "head":
            return f"head slice {self.slice}"
        where = f"layer {self.layer} {self.kind}"
        return where if self.expert < 0 else f"{where} {self.expert}" + (f" slice {self.slice}" if self.slice >= 0 else "")


def attention_layout(config: ModelConfig, quantization: Quantization) -> PageLayout:
    attention, bits = config.attention, quantization.dense_bits
    page = _Builder(quantization.group)
    page.floats("input_norm", config.hidden)
    if attention.qk_norm != "none":
        whole = attention.qk_norm == "projection"
        page.floats("q_norm", attention.query_width if whole else attention.head_dim)
        page.floats("k_norm", attention.kv_width if whole else attention.head_dim)
    page.matrix("q", attention.query_width, config.hidden, bits)
    page.matrix("k", attention.kv_width, config.hidden, bits)
    page.matrix("v", attention.kv_width, config.hidden, bits)
    page.matrix("o", config.hidden, attention.query_width, bits)
    return page.layout()


def router_layout(config: ModelConfig) -> PageLayout:
    """The router is stored transposed, [hidden, experts rounded up to 16], as its kernel reads it."""
    page = _Builder(GROUPS[0])
    page.floats("post_norm", config.hidden)
    page.floats("router", config.hidden, round_up(config.moe.experts, LANES))
    return page.layout()


def expert_layout(config: ModelConfig, quantization: Quantization) -> PageLayout:
    """One expert or slice. Outputs of gate and up alternate by 16: one panel holds 16 of each, so SwiGLU happens in
    registers.
    """
    width = config.moe.width // quantization.expert_slices
    page = _Builder(quantization.group)
    page.matrix("gate_up", 2 * round_up(width, LANES), config.hidden, quantization.expert_bits)
    page.matrix("down", config.hidden, width, quantization.expert_bits)
    return page.layout()


def _head_layout(config: ModelConfig, quantization: Quantization, rows: int) -> PageLayout:
    page = _Builder(quantization.group)
    page.matrix("head", rows, config.hidden, quantization.dense_bits)
    return page.layout()


def build_tape(config: ModelConfig, quantization: Quantization) -> Iterator[PageSpec]:
    """All pages in the order one sweep uses them: per layer attention, router, experts; then the head."""
    attention, router = attention_layout(config, quantization), router_layout(config)
    expert, slices = expert_layout(config, quantization), quantization.expert_slices
    width = config.moe.width // slices
    for layer in range(config.layers):
        yield PageSpec("attention", layer, -1, -1, 0, 0, attention)
        yield PageSpec("router", layer, -1, -1, 0, 0, router)
        for e in range(config.moe.experts):
            for s in range(slices):
                yield PageSpec("expert", layer, e, s if slices > 1 else -1, s * width, width, expert)
    for index, first in enumerate(range(0, config.vocabulary, quantization.head_rows)):
        count = min(quantization.head_rows, config.vocabulary - first)
        yield PageSpec("head", config.layers, -1, index, first, count, _head_layout(config, quantization, count))
