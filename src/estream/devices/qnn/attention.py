"""Attention on the NPU: chunk after chunk of rows, each over the chunks of keys that its rows see."""

from dataclasses import dataclass

import numpy as np

from estream.devices.qnn.arrays import NpuArrays
from estream.devices.qnn.graph_set import Graph, GraphSet
from estream.devices.qnn.residual import Deltas
from estream.engine.batch import Batch
from estream.models.config import AttentionConfig, ModelConfig
from estream.models.rope import Rope
from estream.package.layout import PageSpec
from estream.package.npu.graph_specs import ACCUMULATOR
from estream.package.npu.pages import page_layout
from estream.package.npu.shapes import NpuShapes
from estream.package.parts import PageLayout


@dataclass(frozen=True)
class AttentionGraphs:
    """The graphs of a model's attention blocks, which take ``chunk`` rows in a call."""

    config: AttentionConfig
    chunk: int
    layout: PageLayout
    rope: Rope
    qkv: Graph
    attend: Graph
    output: Graph

    @staticmethod
    def of(config: ModelConfig, shapes: NpuShapes, graphs: GraphSet) -> "AttentionGraphs":
        qkv, attend, output = (graphs.named(kind) for kind in ("qkv", "attend", "output"))
        layout, rope = page_layout(shapes, "attention"), Rope(config.attention.rope)
        return AttentionGraphs(config.attention, shapes.attention.chunk, layout, rope, qkv, attend, output)


class AttentionSweep:
    """The attention blocks of one sweep. The prompts of the batch lie one after another. Two numbers for each row tell the
    graph which keys the row sees, so no prompt is padded.
    """

    def __init__(self, graphs: AttentionGraphs, batch: Batch, arrays: NpuArrays) -> None:
        """Rows behind the last one of ``batch`` are prompts of one token each, whose results nobody reads."""
        self._graphs, self._a, self._tokens = graphs, arrays, batch.tokens
        empty = len(arrays.high) - batch.tokens
        starts = np.repeat(np.cumsum([0, *batch.lengths[:-1]]), batch.lengths)
        self._starts = np.concatenate([starts, np.arange(batch.tokens, len(arrays.high))])
        self._positions = np.concatenate([batch.positions, np.zeros(empty, np.int32)])
        self._lengths = np.concatenate([batch.prompt_lengths, np.ones(empty, np.int32)])

    def run(self, spec: PageSpec, address: int, deltas: Deltas, wanted: np.ndarray | None) -> None:
        """Add the last layer's ``deltas`` and this layer's attention to the residual.

        Args:
            spec: the attention page of the layer.
            address: where it lies.
            deltas: what the last layer's MLPs add.
            wanted: rows that are computed, int32; the others of their chunks are computed too. None for all rows.

        """
        graphs, chunk_rows = self._graphs, self._graphs.chunk
        for graph in (graphs.qkv, graphs.output):
            graph.bind_page(graphs.layout, address)
        chunks = range(-(-self._tokens // chunk_rows))
        needed = set(chunks) if wanted is None else set((wanted // chunk_rows).tolist())
        window = graphs.config.sliding_window_of(spec.layer)
        for chunk in chunks[: max(needed) + 1]:
            self._project(chunk, deltas)
            if chunk in needed:
                rows = self._rows(chunk)
                graphs.output.run(
                    **{ACCUMULATOR: self._attend(chunk, window)},
                    high=self._a.attention.high,
                    low=self._a.attention.low,
                    high_out=self._a.high[rows],
                    low_out=self._a.low[rows],
                )

    def _rows(self, chunk: int) -> slice:
        return slice(chunk * self._graphs.chunk, (chunk + 1) * self._graphs.chunk)

    def _project(self, chunk: int, deltas: Deltas) -> None:
        """Write the queries of a chunk, and its keys and values, which stay for the chunks behind it."""
        a, rows = self._a.attention, self._rows(chunk)
        angles = np.empty((2, self._graphs.chunk, a.cosine.shape[1]), np.float32)
        self._graphs.rope.angles(self._positions[rows], self._lengths[rows], *angles)
        a.cosine[...], a.sine[...] = angles
        self._graphs.qkv.run(
            high=self._a.high[rows],
            low=self._a.low[rows],
            delta=deltas.rows(rows.start),
            cosine=a.cosine,
            sine=a.sine,
            high_out=a.high,
            low_out=a.low,
            q=a.queries,
            k=a.keys[chunk],
            v=a.values[chunk],
        )

    def _attend(self, chunk: int, window: int) -> np.ndarray:
        """The weighted values that a chunk's rows see, float16 [kv_heads, rows, v_dim]. A ``window`` of 0 hides nothing."""
        a, rows, chunk_rows = self._a.attention, self._rows(chunk), self._graphs.chunk
        ends = np.arange(rows.start, rows.stop) + 1
        firsts = np.maximum(self._starts[rows], ends - window) if window else self._starts[rows]
        state, (after, other) = a.states[0], a.states[1:]
        for keys in range(int(firsts.min()) // chunk_rows, chunk + 1):
            a.first[:, 0] = np.clip(firsts - keys * chunk_rows, 0, chunk_rows)
            a.end[:, 0] = np.clip(ends - keys * chunk_rows, 0, chunk_rows)
            if not (a.first < a.end).any():
                continue
            seen = {"k": a.keys[keys], "v": a.values[keys], "first": a.first, "end": a.end}
            self._graphs.attend.run(q=a.queries, **seen, **state.tensors(), **after.tensors("_out"))
            state, (after, other) = after, (other, after)
        return state.accumulator
