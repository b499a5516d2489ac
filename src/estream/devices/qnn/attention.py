"""Attention on the NPU: chunk after chunk of rows, each over the chunks of keys that its rows see."""

import numpy as np

from estream.devices.qnn.arrays import NpuArrays
from estream.devices.qnn.graph_set import GraphSet
from estream.devices.qnn.residual import Deltas
from estream.engine.batch import Batch
from estream.models.config import ModelConfig
from estream.models.rope import Rope
from estream.package.layout import PageSpec
from estream.package.npu.graph_specs import ACCUMULATOR
from estream.package.npu.pages import page_layout
from estream.package.npu.shapes import NpuShapes


class NpuAttention:
    """The attention blocks of one model. All prompts of a batch lie one after another; which keys a row sees is said to the
    graph by numbers, so prompts need no padding of their own.
    """

    def __init__(self, config: ModelConfig, shapes: NpuShapes, graphs: GraphSet) -> None:
        self._config = config.attention
        self._chunk = shapes.attention.chunk
        self._layout = page_layout(shapes, "attention")
        self._rope = Rope(config.attention.rope)
        self._qkv, self._attend, self._output = (graphs.named(kind) for kind in ("qkv", "attend", "output"))

    def begin(self, batch: Batch, arrays: NpuArrays) -> None:
        """Prepare for a batch; rows behind its last are prompts of one token each, whose results nobody reads."""
        self._a, self._tokens = arrays, batch.tokens
        empty = len(arrays.high) - batch.tokens
        starts = np.repeat(np.cumsum([0, *batch.lengths[:-1]]), batch.lengths)
        self._starts = np.concatenate([starts, np.arange(batch.tokens, len(arrays.high))])
        self._positions = np.concatenate([batch.positions, np.zeros(empty, np.int32)])
        self._lengths = np.concatenate([batch.prompt_lengths, np.ones(empty, np.int32)])

    def release(self) -> None:
        """Forget the arrays of the last sweep."""
        del self._a

    def run(self, spec: PageSpec, address: int, deltas: Deltas, wanted: np.ndarray | None) -> None:
        """Add what the last layer's MLPs and this layer's attention give to the residual, of chunks with ``wanted`` rows (all
        where it is None).
        """
        for graph in (self._qkv, self._output):
            graph.bind_page(self._layout, address)
        chunks = range(-(-self._tokens // self._chunk))
        needed = set(chunks) if wanted is None else set((wanted // self._chunk).tolist())
        window = self._config.sliding_window_of(spec.layer)
        for chunk in chunks[: max(needed) + 1]:
            self._project(chunk, deltas)
            if chunk in needed:
                accumulator = self._attended(chunk, window)
                rows = self._rows(chunk)
                self._output.run(
                    **{ACCUMULATOR: accumulator},
                    high=self._a.attention.high,
                    low=self._a.attention.low,
                    high_out=self._a.high[rows],
                    low_out=self._a.low[rows],
                )

    def _rows(self, chunk: int) -> slice:
        return slice(chunk * self._chunk, (chunk + 1) * self._chunk)

    def _project(self, chunk: int, deltas: Deltas) -> None:
        """Queries of one chunk, and its keys and values, which stay for the chunks behind it."""
        a, rows = self._a.attention, self._rows(chunk)
        angles = np.empty((2, self._chunk, a.cosine.shape[1]), np.float32)
        self._rope.angles(self._positions[rows], self._lengths[rows], *angles)
        a.cosine[...], a.sine[...] = angles
        self._qkv.run(
            high=self._a.high[rows],
            low=self._a.low[rows],
            delta=deltas.rows(chunk * self._chunk),
            cosine=a.cosine,
            sine=a.sine,
            high_out=a.high,
            low_out=a.low,
            q=a.queries,
            k=a.keys[chunk],
            v=a.values[chunk],
        )

    def _attended(self, chunk: int, window: int) -> np.ndarray:
        """The values that a chunk's rows see, weighted."""
        a, rows = self._a.attention, self._rows(chunk)
        ends = np.arange(rows.start, rows.stop) + 1
        firsts = np.maximum(self._starts[rows], ends - window) if window else self._starts[rows]
        state, (after, other) = a.states[0], a.states[1:]
        for keys in range(int(firsts.min()) // self._chunk, chunk + 1):
            a.first[:, 0] = np.clip(firsts - keys * self._chunk, 0, self._chunk)
            a.end[:, 0] = np.clip(ends - keys * self._chunk, 0, self._chunk)
            if not (a.first < a.end).any():
                continue
            seen = {"k": a.keys[keys], "v": a.values[keys], "first": a.first, "end": a.end}
            self._attend.run(q=a.queries, **seen, **state.tensors(), **after.tensors("_out"))
            state, (after, other) = after, (other, after)
        return state.accumulator
