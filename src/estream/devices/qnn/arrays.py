"""The arrays of a sweep on the NPU: what graphs read and write beside the pages. Their bytes are known before they exist."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from estream.engine.activations import ALIGNMENT, Carver
from estream.engine.batch import BatchShape
from estream.engine.head import HeadArrays, HeadShape
from estream.host.sizes import round_up
from estream.models.config import ModelConfig
from estream.package.npu import graph_specs
from estream.package.npu.shapes import NpuShapes


@dataclass(frozen=True)
class WindowArrays:
    """A window of a routing group's sorted slots; float16 [window + spare, hidden]. The last tile may end in the spare rows."""

    rows: np.ndarray  # what the experts read
    results: np.ndarray  # what they write


@dataclass(frozen=True)
class RoutingArrays:
    """What routing gives for one group of T rows, with E experts and S = T * top_k slots."""

    normed: np.ndarray  # float16 [T + spare, hidden]
    ids: np.ndarray  # int32 [T, top_k]
    weights: np.ndarray  # float16 [T, top_k]
    tokens: np.ndarray  # int32 [S + window], the row of each slot, slots sorted by expert
    slot_weights: np.ndarray  # float16 [S + spare]
    counts: np.ndarray  # int32 [E], slots of each expert
    shared_weights: np.ndarray  # float16 [T + spare]
    count: np.ndarray  # int32 [1], rows that are routed

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
    """Keys and values of one layer in N chunks of C rows, and what one chunk of queries needs."""

    keys: np.ndarray  # float16 [N, kv_heads, qk_dim, C]
    values: np.ndarray  # float16 [N, kv_heads, C, v_dim]
    high: np.ndarray  # float16 [C, hidden], the residual of the chunk at hand, and so low
    low: np.ndarray
    queries: np.ndarray  # float16 [kv_heads, share * C, qk_dim]
    first: np.ndarray  # int32 [C, 1], the first key of a chunk that a row sees
    end: np.ndarray  # int32 [C, 1], the key behind the last one
    cosine: np.ndarray  # float16 [C, rotated / 2], and so sine
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
    """All arrays of a sweep over G groups of T rows; float16 where nothing else is said.

    The residual is ``high`` + ``low``. ``deltas`` hold what a layer's MLPs add to it in the next layer. No graph may write what
    it reads, so there is one buffer more than groups.
    """

    memory: np.ndarray  # uint8, all of them
    residual: np.ndarray  # float32 [tokens, hidden], the embedding rows; its memory becomes that of the windows
    head: HeadArrays
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
    """The arrays for a batch of ``tokens`` rows, and what the ``head`` leaves of it."""

    config: ModelConfig
    shapes: NpuShapes
    tokens: int
    head: HeadShape

    @staticmethod
    def of(config: ModelConfig, shapes: NpuShapes, batch: BatchShape) -> "NpuPlan":
        return NpuPlan(config, shapes, batch.tokens, batch.head)

    @property
    def groups(self) -> int:
        return -(-self.tokens // self.shapes.routing.tokens)

    @property
    def spare(self) -> int:
        """Rows behind the last one that a tile may touch."""
        parts = (self.shapes.expert, self.shapes.shared)
        return max(max(part.tiles) for part in parts if part is not None)

    @property
    def sliced(self) -> bool:
        """Whether experts are cut into slices. Then partial sums wait from one slice to the next."""
        return self.config.moe.intermediate_size > self.shapes.expert.slice_width

    @property
    def residual_bytes(self) -> int:
        # Embedding rows are read past the page cache into what lies behind. Such reads take whole blocks.
        return round_up(4 * self.tokens * self.shapes.hidden, ALIGNMENT)

    @cached_property
    def bytes(self) -> int:
        take = Carver()
        self._carve(take, np.empty(0, np.uint8))
        return take.offset

    def carve(self, memory: np.ndarray) -> NpuArrays:
        """Lay the arrays into ``memory``, uint8, at least ``bytes`` long. Call :meth:`begin` before a graph reads them."""
        memory = memory[: self.bytes]
        return self._carve(Carver(memory), memory)

    def _carve(self, take: Carver, memory: np.ndarray) -> NpuArrays:
        shapes, hidden, spare = self.shapes, self.shapes.hidden, self.spare
        rows, window = shapes.routing.tokens, shapes.routing.window
        groups, half, whole = self.groups, np.float16, np.int32
        # The windows have at least T rows each and lie at the start, so the residual has room there.
        windows = tuple(
            WindowArrays(take(half, window + spare, hidden), take(half, window + spare, hidden)) for _ in range(groups)
        )
        return NpuArrays(
            memory=memory,
            residual=memory[: 4 * self.tokens * hidden].view(np.float32).reshape(-1, hidden),
            head=HeadArrays.carve(take, self.head, self.config.vocabulary, hidden),
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
        """Bring the embedding rows into the residual, and set all else to values that graphs may read."""
        windows_end = sum(round_up(part.nbytes, ALIGNMENT) for w in arrays.windows for part in (w.rows, w.results))
        arrays.memory[windows_end:].fill(0)
        rows = arrays.residual
        for first in range(0, self.tokens, 512):
            part = slice(first, min(first + 512, self.tokens))
            arrays.high[part] = rows[part]
            arrays.low[part] = rows[part] - arrays.high[part]
        arrays.memory[:windows_end].fill(0)
        arrays.ones.fill(1.0)
        arrays.attention.states[0].row_max.fill(graph_specs.LOWEST)
