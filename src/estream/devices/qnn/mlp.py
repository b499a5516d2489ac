"""MLPs on the NPU: routing, experts by tiles of their rows, and the MLPs that serve every row."""

import numpy as np

from estream.devices.qnn.arrays import NpuArrays, RoutingArrays
from estream.devices.qnn.graph_set import Graph, GraphSet
from estream.devices.qnn.residual import Deltas
from estream.devices.qnn.tiles import Tile, TileCount, TileCover
from estream.engine.routing import RoutingLists
from estream.errors import DeviceError
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec
from estream.package.npu.pages import mlp_shapes, page_layout
from estream.package.npu.shapes import NpuShapes


class NpuMlp:
    """The MLPs of one layer at a time, over groups of T residual rows. Of the routing the host reads the counts alone."""

    def __init__(self, config: ModelConfig, shapes: NpuShapes, graphs: GraphSet, tiles: tuple[Tile, ...]) -> None:
        self._config, self._shapes = config, shapes
        self._route, self._gather, self._combine = (graphs.named(kind) for kind in ("route", "gather", "combine"))
        self._experts = _tile_graphs(graphs, shapes, "expert")
        self._shared = _tile_graphs(graphs, shapes, "shared")
        self._cover = TileCover(tiles)
        self._shared_cover = TileCover([Tile(rows, rows) for rows in self._shared])
        self.tiles = TileCount()

    def begin(self, arrays: NpuArrays) -> None:
        self._a = arrays
        self.deltas = Deltas(arrays.deltas, arrays.zeros, self._shapes.routing.tokens)
        self.tiles = TileCount()

    def release(self) -> None:
        """Forget the arrays of the last sweep."""
        del self._a, self.deltas

    def route(self, spec: PageSpec, address: int, rows: int) -> RoutingLists:
        """Normalise the first ``rows`` of the residual and route them; in a dense layer the routing is nobody's."""
        size, moe = self._shapes.routing.tokens, self._config.moe
        self.deltas.clear()
        self._counts = [min(size, rows - first) for first in range(0, rows, size)]
        for group, count in enumerate(self._counts):
            self._route_rows(self._a.high[group * size :], count, self._a.routing[group], address)
        if spec.layer in self._config.dense_layers:
            self._starts = []
            return RoutingLists.none()
        counts = [self._a.routing[group].counts for group in range(len(self._counts))]
        if any(found.sum() != valid * moe.top_k for found, valid in zip(counts, self._counts, strict=True)):
            raise DeviceError(f"layer {spec.layer}: the NPU routed {counts} of {self._counts} rows to {moe.top_k} experts each")
        self._starts = [np.concatenate(([0], np.cumsum(found))) for found in counts]
        return RoutingLists(np.empty(0, np.int32), np.empty(0, np.float32), np.sum(self._starts, axis=0))

    def predict(self, address: int, rows: int) -> frozenset[int]:
        """The likeliest quarter of each row's experts, as another layer's router sees the residual now."""
        rows = min(rows, self._shapes.routing.tokens)
        self._route_rows(self._a.high, rows, self._a.predicted, address)
        likeliest = self._a.predicted.ids[:rows, : max(1, self._config.moe.top_k // 4)]
        return frozenset(np.unique(likeliest).tolist())

    def _route_rows(self, high: np.ndarray, count: int, to: RoutingArrays, address: int) -> None:
        self._route.bind_page(page_layout(self._shapes, "router"), address)
        to.count[0] = count
        outputs = {tensor.name: getattr(to, tensor.name) for tensor in self._route.spec.outputs}
        self._route.run(high=high, count=to.count, **outputs)

    def begin_experts(self) -> None:
        #: The slot at which each group's window begins; None before its first expert.
        self._windows: list[int | None] = [None] * len(self._counts)

    def shared(self, spec: PageSpec, address: int) -> None:
        """Add the MLP (or slice) of every row, times the weight that the router gives it, to the sums."""
        gated = self._config.moe.shared_gate and spec.layer not in self._config.dense_layers
        layout = page_layout(self._shapes, "shared")
        for graph in self._shared.values():
            graph.bind_page(layout, address)
        for group, count in enumerate(self._counts):
            routing, before, after, first = self._a.routing[group], self.deltas.sum(group), self.deltas.next(), 0
            for rows in self._shared_cover.of(count):
                self._shared[rows].run(
                    x=routing.normed[first:],
                    weights=self._staged(routing.shared_weights, first) if gated else self._a.ones,
                    sums=before[first:] if spec.first else self._a.zeros,
                    sums_out=after[first:],
                )
                first += rows
            self.deltas.advance(group)

    def expert(self, spec: PageSpec, address: int) -> None:
        """Compute one expert (or slice) for all rows that are routed to it."""
        layout = page_layout(self._shapes, "expert")
        for graph in self._experts.values():
            graph.bind_page(layout, address)
        for group, starts in enumerate(self._starts):
            begin, end = int(starts[spec.expert]), int(starts[spec.expert + 1])
            if begin < end:
                self._expert_rows(spec, group, begin, end)

    def _expert_rows(self, spec: PageSpec, group: int, begin: int, end: int) -> None:
        """Slots [begin, end) of a group. The last tile may run over: the next expert writes those rows anew."""
        window = self._windows[group]
        if window is None or end > window + self._shapes.routing.window:
            # A token has an expert once, so all rows of an expert fit into a window that begins with them.
            self._move_window(group, begin)
            window = begin
        tiles = self._cover.of(end - begin)
        self.tiles.add(end - begin, tiles)
        a, routing = self._a.windows[group], self._a.routing[group]
        # Slices add up in two buffers by turns; the last one writes the results.
        slices = -(-self._config.moe.intermediate_size // self._shapes.expert.slice_width)
        turns = (a.results, self._a.partials[group] if slices > 1 else a.results)
        to = turns[(slices - 1 - max(spec.slice, 0)) % 2]
        sums = turns[1] if to is turns[0] else turns[0]
        first, slot = begin - window, begin
        for rows in tiles:
            self._experts[rows].run(
                x=a.rows[first:],
                weights=self._staged(routing.slot_weights, slot),
                sums=sums[first:] if spec.slice > 0 else self._a.zeros,
                sums_out=to[first:],
            )
            first, slot = first + rows, slot + rows

    def _staged(self, weights: np.ndarray, first: int) -> np.ndarray:
        """The weights of a tile at an aligned address."""
        part = weights[first : first + len(self._a.tile_weights)]
        self._a.tile_weights[: len(part)] = part
        return self._a.tile_weights

    def _move_window(self, group: int, begin: int) -> None:
        """Add what the group's window holds to the sums, and gather rows from slot ``begin`` on."""
        self._flush(group, begin)
        tokens = self._a.window_tokens[group]
        tokens[...] = self._a.routing[group].tokens[begin : begin + len(tokens)]
        self._gather.run(normed=self._a.routing[group].normed, tokens=tokens, rows=self._a.windows[group].rows)
        self._windows[group] = begin

    def _flush(self, group: int, end: int) -> None:
        window = self._windows[group]
        if window is None:
            return
        self._a.count[0] = end - window
        self._combine.run(
            delta=self.deltas.sum(group),
            rows=self._a.windows[group].results,
            tokens=self._a.window_tokens[group],
            count=self._a.count,
            delta_out=self.deltas.next(),
        )
        self.deltas.advance(group)

    def end_experts(self) -> None:
        for group, starts in enumerate(self._starts):
            self._flush(group, int(starts[-1]))


def _tile_graphs(graphs: GraphSet, shapes: NpuShapes, kind: str) -> dict[int, Graph]:
    part = mlp_shapes(shapes, "expert" if kind == "expert" else "shared")
    found = [g for g in graphs.graphs.values() if g.spec.kind == "mlp" and g.spec.matrices == part.matrices(shapes.hidden)]
    return {graph.spec.rows: graph for graph in found}
