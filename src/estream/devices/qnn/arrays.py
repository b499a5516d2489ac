"""The arrays of a sweep on the NPU: all that graphs read and write beside the pages, planned before any of it exists."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from estream.engine.activations import Array
from estream.engine.batch import Batch
from estream.host.sizes import round_up
from estream.models.config import ModelConfig
from estream.package.npu import graph_specs
from estream.package.npu.shapes import NpuShapes

_ALIGNMENT = 4096


class Carver:
    """Lays arrays one after another: counts their bytes, or takes them from memory."""

    def __init__(self, memory: np.ndarray | None = None) -> None:
        self.offset = 0
        self._memory = memory

    def __call__(self, dtype: type[np.generic], *shape: int) -> np.ndarray:
        array, offset = Array(shape, np.dtype(dtype)), self.offset
        self.offset += round_up(array.bytes, _ALIGNMENT)
        if self._memory is None:
            return np.empty(0, dtype)
        return self._memory[offset : offset + array.bytes].view(dtype).reshape(shape)


@dataclass(frozen=True)
class WindowArrays:
    """A window of a routing group's sorted slots: rows gathered for the experts, and what those make of them. Behind the
    window there is room for the end of a last tile.
    """

    rows: np.ndarray
    results: np.ndarray


@dataclass(frozen=True)
class RoutingArrays:
    """What routing gives for one group of rows; ``normed`` may be longer."""

    normed: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    tokens: np.ndarray
    slot_weights: np.ndarray
    counts: np.ndarray
    shared_weights: np.ndarray
    count: np.ndarray

    @staticmethod
    def carve(take: Carver, shapes: NpuShapes, spare: int) -> "RoutingArrays":
        r = shapes.routing
        return RoutingArrays(
            normed=take(np.float16, r.tokens + spare, shapes.hidden),
            ids=take(np.int32, r.tokens, r.top_k),
            weights=take(np.float16, r.tokens, r.top_k),
            # A window may begin at the last slot.
            tokens=take(np.int32, r.slots + r.window),
            slot_weights=take(np.float16, r.slots + spare),
            counts=take(np.int32, r.experts),
            shared_weights=take(np.float16, r.tokens + spare),
            count=take(np.int32, 1),
        )


@dataclass(frozen=True)
class SoftmaxState:
    """What a running softmax knows of the keys so far, for each row of a chunk of queries; float16 [kv_heads, rows, ...]."""

    row_max: np.ndarray  # [..., 1]
    row_sum: np.ndarray  # [..., 1]
    accumulator: np.ndarray  # [..., v_dim], the weighted values over row_sum

    @staticmethod
    def carve(take: Carver, shapes: NpuShapes) -> "SoftmaxState":
        a = shapes.attention
        return SoftmaxState(*(take(np.float16, a.kv_heads, a.share * a.chunk, width) for width in (1, 1, a.v_dim)))

    def tensors(self, suffix: str = "") -> dict[str, np.ndarray]:
        """The arrays by the names of the graph's tensors; those of its outputs end in ``suffix``."""
        names = (graph_specs.ROW_MAX, graph_specs.ROW_SUM, graph_specs.ACCUMULATOR)
        return {name + suffix: array for name, array in zip(names, (self.row_max, self.row_sum, self.accumulator), strict=True)}


@dataclass(frozen=True)
class AttentionArrays:
    """Keys and values of one layer by chunks, and what one chunk of queries needs."""

    keys: np.ndarray
    values: np.ndarray
    high: np.ndarray
    low: np.ndarray
    queries: np.ndarray
    first: np.ndarray
    end: np.ndarray
    cosine: np.ndarray
    sine: np.ndarray
    states: tuple[SoftmaxState, ...]

    @staticmethod
    def carve(take: Carver, shapes: NpuShapes, chunks: int) -> "AttentionArrays":
        a, hidden = shapes.attention, shapes.hidden
        rows = a.share * a.chunk

        return AttentionArrays(
            keys=take(np.float16, chunks, a.kv_heads, a.qk_dim, a.chunk),
            values=take(np.float16, chunks, a.kv_heads, a.chunk, a.v_dim),
            high=take(np.float16, a.chunk, hidden),
            low=take(np.float16, a.chunk, hidden),
            queries=take(np.float16, a.kv_heads, rows, a.qk_dim),
            first=take(np.int32, a.chunk, 1),
            end=take(np.int32, a.chunk, 1),
            cosine=take(np.float16, a.chunk, a.rotated // 2),
            sine=take(np.float16, a.chunk, a.rotated // 2),
            # Where a running softmax begins, and two that take turns.
            states=tuple(SoftmaxState.carve(take, shapes) for _ in range(3)),
        )


@dataclass(frozen=True)
class NpuArrays:
    """G groups of T rows. The residual is the sum of ``high`` and ``low``; ``deltas`` are what MLPs add to it in the next
    layer, one buffer more than there are groups, since no graph may write what it reads.
    """

    memory: np.ndarray  # uint8, all of them
    residual: np.ndarray  # float32 [tokens, hidden], the embedding rows; its memory becomes that of the windows
    logits: np.ndarray  # float32 [W, vocabulary]
    high: np.ndarray  # [G * T, hidden], and so low
    low: np.ndarray
    deltas: np.ndarray  # [G + 1, T + spare, hidden]
    windows: tuple[WindowArrays, ...]
    routing: tuple[RoutingArrays, ...]
    predicted: RoutingArrays
    attention: AttentionArrays
    partials: np.ndarray  # [G, window + spare, hidden], where experts are cut into slices
    window_tokens: np.ndarray  # int32 [G, window]
    tile_weights: np.ndarray  # [spare]
    ones: np.ndarray  # [spare]
    zeros: np.ndarray  # [T + spare, hidden]
    count: np.ndarray  # int32 [1]
    final_norm: np.ndarray  # [hidden]
    head_logits: np.ndarray  # [rows of the head, vocabulary of a page]


@dataclass(frozen=True)
class NpuPlan:
    """The arrays for a batch of so many ``tokens``, of which ``wanted`` rows reach the head."""

    config: ModelConfig
    shapes: NpuShapes
    tokens: int
    wanted: int

    @staticmethod
    def of(config: ModelConfig, shapes: NpuShapes, batch: Batch) -> "NpuPlan":
        return NpuPlan(config, shapes, batch.tokens, len(batch.wanted))

    @property
    def groups(self) -> int:
        return -(-self.tokens // self.shapes.routing.tokens)

    @property
    def spare(self) -> int:
        """Rows behind the last one that the end of a tile may touch."""
        parts = (self.shapes.expert, self.shapes.shared)
        return max(max(part.tiles) for part in parts if part is not None)

    @property
    def sliced(self) -> bool:
        """Whether experts are cut into slices, whose partial sums wait between one slice's page and the next."""
        return self.config.moe.intermediate_size > self.shapes.expert.slice_width

    @property
    def residual_bytes(self) -> int:
        # Embedding rows are read into what lies behind, past the page cache, which wants whole blocks.
        return round_up(4 * self.tokens * self.shapes.hidden, _ALIGNMENT)

    @cached_property
    def bytes(self) -> int:
        take = Carver()
        self._carve(take, np.empty(0, np.uint8))
        return take.offset

    def carve(self, memory: np.ndarray) -> NpuArrays:
        """Lay the arrays into uint8 ``memory`` of at least ``bytes``; what the graphs read must then be set to zero once."""
        memory = memory[: self.bytes]
        return self._carve(Carver(memory), memory)

    def _carve(self, take: Carver, memory: np.ndarray) -> NpuArrays:
        shapes, hidden, spare = self.shapes, self.shapes.hidden, self.spare
        rows, window = shapes.routing.tokens, shapes.routing.window
        groups, half, whole = self.groups, np.float16, np.int32
        # The windows, of at least T rows each, lie at the start: the residual has room there.
        windows = tuple(
            WindowArrays(take(half, window + spare, hidden), take(half, window + spare, hidden)) for _ in range(groups)
        )
        return NpuArrays(
            memory=memory,
            residual=memory[: 4 * self.tokens * hidden].view(np.float32).reshape(-1, hidden),
            logits=take(np.float32, self.wanted, self.config.vocabulary),
            high=take(half, groups * rows, hidden),
            low=take(half, groups * rows, hidden),
            deltas=take(half, groups + 1, rows + spare, hidden),
            windows=windows,
            routing=tuple(RoutingArrays.carve(take, shapes, spare) for _ in range(groups)),
            predicted=RoutingArrays.carve(take, shapes, spare),
            attention=AttentionArrays.carve(take, shapes, groups * rows // shapes.attention.chunk),
            partials=take(half, groups, window + spare if self.sliced else 0, hidden),
            window_tokens=take(whole, groups, window),
            tile_weights=take(half, spare),
            ones=take(half, spare),
            zeros=take(half, rows + spare, hidden),
            count=take(whole, 1),
            final_norm=take(half, hidden),
            head_logits=take(half, shapes.head.rows, shapes.head.vocabulary),
        )

    def begin(self, arrays: NpuArrays) -> None:
        """Bring the embedding rows into the residual, and set all else to what graphs may read."""
        windows_end = sum(round_up(part.nbytes, _ALIGNMENT) for w in arrays.windows for part in (w.rows, w.results))
        arrays.memory[windows_end:].fill(0)
        rows = arrays.residual
        for first in range(0, self.tokens, 512):
            part = slice(first, min(first + 512, self.tokens))
            arrays.high[part] = rows[part]
            arrays.low[part] = rows[part] - arrays.high[part]
        arrays.memory[:windows_end].fill(0)
        arrays.ones.fill(1.0)
        arrays.attention.states[0].row_max.fill(graph_specs.LOWEST)
