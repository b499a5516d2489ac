"""MLPs on the NPU: routing, experts by tiles of their rows, and the MLPs that serve every row."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from estream.devices.qnn.arrays import NpuArrays, RoutingArrays
from estream.devices.qnn.graph_set import Graph, GraphSet
from estream.devices.qnn.residual import Deltas
from estream.devices.qnn.tiles import Tile, TileCount, TileCover
from estream.engine.routing import RoutingLists, experts_to_prefetch_per_token
from estream.errors import DeviceError
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec
from estream.package.npu.pages import mlp_shapes, page_layout
from estream.package.npu.shapes import MlpShapes, NpuShapes


@dataclass(frozen=True)
class MlpGraphs:
    """The graphs of a model's routers and MLPs: those of MLPs by their rows, and the tiles that cover any number of rows."""

    config: ModelConfig
    shapes: NpuShapes
    route: Graph
    gather: Graph
    combine: Graph
    experts: Mapping[int, Graph]
    shared: Mapping[int, Graph]
    expert_cover: TileCover
    shared_cover: TileCover

    @staticmethod
    def of(config: ModelConfig, shapes: NpuShapes, graphs: GraphSet, tiles: tuple[Tile, ...]) -> "MlpGraphs":
        """``tiles`` are those of the experts, with what a call costs."""
        route, gather, combine = (graphs.named(kind) for kind in ("route", "gather", "combine"))
        experts, shared = (_by_rows(graphs, shapes, mlp_shapes(shapes, kind)) for kind in ("expert", "shared"))
        shared_cover = TileCover([Tile(rows, rows) for rows in shared])
        return MlpGraphs(config, shapes, route, gather, combine, experts, shared, TileCover(tiles), shared_cover)


def _by_rows(graphs: GraphSet, shapes: NpuShapes, part: MlpShapes) -> dict[int, Graph]:
    found = [g for g in graphs.graphs.values() if g.spec.kind == "mlp" and g.spec.matrices == part.matrices(shapes.hidden)]
    return {graph.spec.rows: graph for graph in found}


class MlpSweep:
    """The MLPs of one sweep, over groups of T rows of the residual. ``tiles`` counts the experts' rows."""

    def __init__(self, graphs: MlpGraphs, arrays: NpuArrays) -> None:
        self.graphs, self.arrays = graphs, arrays
        self.deltas = Deltas(arrays.deltas, arrays.zeros, graphs.shapes.routing.tokens)
        self.tiles = TileCount()

    def nothing_routed(self) -> "LayerMlps":
        """What stands for a layer before the first one is routed."""
        return LayerMlps(self, [], [])

    def route(self, spec: PageSpec, address: int, rows: int) -> "LayerMlps":
        """Normalise the first ``rows`` of the residual and route them. A dense layer is only normalised.

        Raises:
            DeviceError: the NPU counted another number of slots than the rows have.

        """
        size, moe = self.graphs.shapes.routing.tokens, self.graphs.config.moe
        self.deltas.clear()
        group_rows = [min(size, rows - first) for first in range(0, rows, size)]
        for group, count in enumerate(group_rows):
            self._route_rows(self.arrays.high[group * size :], count, self.arrays.routing[group], address)
        if spec.layer in self.graphs.config.dense_layers:
            return LayerMlps(self, group_rows, [])
        counts = [self.arrays.routing[group].counts for group in range(len(group_rows))]
        if any(found.sum() != valid * moe.top_k for found, valid in zip(counts, group_rows, strict=True)):
            raise DeviceError(f"layer {spec.layer}: the NPU routed {counts} of {group_rows} rows to {moe.top_k} experts each")
        return LayerMlps(self, group_rows, [np.concatenate(([0], np.cumsum(found))) for found in counts])

    def experts_to_prefetch(self, address: int, rows: int) -> frozenset[int]:
        """The likeliest quarter of each row's experts, as another layer's router sees the residual now."""
        rows = min(rows, self.graphs.shapes.routing.tokens)
        self._route_rows(self.arrays.high, rows, self.arrays.predicted, address)
        likeliest = self.arrays.predicted.ids[:rows, : experts_to_prefetch_per_token(self.graphs.config.moe.top_k)]
        return frozenset(np.unique(likeliest).tolist())

    def _route_rows(self, high: np.ndarray, count: int, to: RoutingArrays, address: int) -> None:
        graph = self.graphs.route
        graph.bind_page(page_layout(self.graphs.shapes, "router"), address)
        to.count[0] = count
        outputs = {tensor.name: getattr(to, tensor.name) for tensor in graph.spec.outputs}
        graph.run(high=high, count=to.count, **outputs)


class LayerMlps:
    """The MLPs of one layer, whose rows are routed. Of the routing the host reads the counts alone.

    ``group_rows`` has the number of rows of each group, ``starts`` for each group the slots at which its experts begin, and
    behind the last one the number of slots.
    """

    def __init__(self, sweep: MlpSweep, group_rows: list[int], starts: list[np.ndarray]) -> None:
        self.group_rows = group_rows
        self._sweep, self._graphs, self._a, self._deltas = sweep, sweep.graphs, sweep.arrays, sweep.deltas
        self._starts = starts
        #: The slot at which each group's window begins; None before its first expert.
        self._windows: list[int | None] = [None] * len(group_rows)

    @property
    def lists(self) -> RoutingLists:
        """What the engine reads: the counts of all groups together."""
        if not self._starts:
            return RoutingLists.none()
        return RoutingLists(np.empty(0, np.int32), np.empty(0, np.float32), np.sum(self._starts, axis=0))

    def shared(self, spec: PageSpec, address: int) -> None:
        """Add the MLP (or slice) of every row to the sums, times the weight that the router gives it."""
        config = self._graphs.config
        gated = config.moe.shared_gate and spec.layer not in config.dense_layers
        layout = page_layout(self._graphs.shapes, "shared")
        for graph in self._graphs.shared.values():
            graph.bind_page(layout, address)
        for group, count in enumerate(self.group_rows):
            routing, before, after, first = self._a.routing[group], self._deltas.sum(group), self._deltas.next(), 0
            for rows in self._graphs.shared_cover.of(count):
                self._graphs.shared[rows].run(
                    x=routing.normed[first:],
                    weights=self._staged(routing.shared_weights, first) if gated else self._a.ones,
                    sums=before[first:] if spec.first else self._a.zeros,
                    sums_out=after[first:],
                )
                first += rows
            self._deltas.advance(group)

    def expert(self, spec: PageSpec, address: int) -> None:
        """Compute one expert (or slice) for all rows that are routed to it."""
        layout = page_layout(self._graphs.shapes, "expert")
        for graph in self._graphs.experts.values():
            graph.bind_page(layout, address)
        for group, starts in enumerate(self._starts):
            begin, end = int(starts[spec.expert]), int(starts[spec.expert + 1])
            if begin < end:
                self._expert_rows(spec, group, begin, end)

    def end(self) -> None:
        """All experts have been computed: add what the windows hold to the sums."""
        for group, starts in enumerate(self._starts):
            self._flush(group, int(starts[-1]))

    def _expert_rows(self, spec: PageSpec, group: int, begin: int, end: int) -> None:
        """Slots [begin, end) of a group. The last tile may run over: the next expert writes those rows anew."""
        shapes = self._graphs.shapes
        window = self._windows[group]
        if window is None or end > window + shapes.routing.window:
            # A token has an expert once, so all rows of an expert fit into a window that begins with them.
            self._move_window(group, begin)
            window = begin
        tiles = self._graphs.expert_cover.of(end - begin)
        self._sweep.tiles.add(end - begin, tiles)
        a, routing = self._a.windows[group], self._a.routing[group]
        # Slices add up in two buffers by turns; the last one writes the results.
        slices = -(-self._graphs.config.moe.intermediate_size // shapes.expert.slice_width)
        turns = (a.results, self._a.partials[group] if slices > 1 else a.results)
        to = turns[(slices - 1 - max(spec.slice, 0)) % 2]
        sums = turns[1] if to is turns[0] else turns[0]
        first, slot = begin - window, begin
        for rows in tiles:
            self._graphs.experts[rows].run(
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
        self._graphs.gather.run(normed=self._a.routing[group].normed, tokens=tokens, rows=self._a.windows[group].rows)
        self._windows[group] = begin

    def _flush(self, group: int, end: int) -> None:
        """Add the slots of the group's window, up to slot ``end``, to the sums."""
        window = self._windows[group]
        if window is None:
            return
        self._a.count[0] = end - window
        self._graphs.combine.run(
            delta=self._deltas.sum(group),
            rows=self._a.windows[group].results,
            tokens=self._a.window_tokens[group],
            count=self._a.count,
            delta_out=self._deltas.next(),
        )
        self._deltas.advance(group)
