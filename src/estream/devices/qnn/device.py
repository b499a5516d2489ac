"""The NPU as a device: it binds pages and arrays to a few compiled graphs, which serve every layer and every expert."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from estream import _native
from estream.devices.qnn import target
from estream.devices.qnn.arrays import NpuArrays, NpuPlan
from estream.devices.qnn.attention import AttentionGraphs, AttentionSweep
from estream.devices.qnn.graph_set import Graph, GraphSet
from estream.devices.qnn.mlp import LayerMlps, MlpGraphs, MlpSweep
from estream.devices.qnn.tiles import Tile, TileCount, measured_tiles, written_cost
from estream.devices.qnn.toolchain import SOCS
from estream.engine.activations import SweepArrays
from estream.engine.batch import Batch
from estream.engine.device import LentPage
from estream.engine.reduction import HeadReduction
from estream.engine.routing import RoutingLists
from estream.errors import OptionError
from estream.package.layout import PageSpec
from estream.package.npu.pages import page_layout
from estream.package.package import Package

_ROUNDS = 5
#: Rows whose final norm is computed on the host at once.
_HIDDEN_ROWS = 64
#: In a forked child the runtime's threads are gone, and its destructors would wait for them: what is here stays for good.
_ABANDONED: list[object] = []


@dataclass
class _Sweep:
    """What the calls of one sweep share: ``layer`` is the one that was routed last, ``rows`` the rows that are computed."""

    arrays: NpuArrays
    batch: Batch
    attention: AttentionSweep
    mlps: MlpSweep
    layer: LayerMlps
    rows: int
    reduction: HeadReduction


class QnnDevice:
    """Runs a package for the NPU on a chip, or on the vendor's emulator of that chip."""

    def __init__(self, package: Package, soc: str | None = None) -> None:
        """Load the graphs. Those that the package does not hold for this chip and toolchain are compiled.

        Args:
            package: a package for the NPU.
            soc: a key of ``toolchain.SOCS``; None for the first chip that the package holds graphs for.

        Raises:
            OptionError: this machine has neither NPU nor emulator, or the chip is not known.
            DeviceError: a graph cannot be loaded.

        """
        manifest = package.manifest
        section = manifest.npu
        assert section is not None
        self._target = target.target()
        if self._target is None:
            raise OptionError(
                "device qnn: there is no NPU here, nor its emulator; pip install 'estream[qnn]' brings the emulator to Linux "
                "on x86-64, and the driver to Windows and Linux on Snapdragon"
            )
        self._config, self._shapes = manifest.config, section.shapes
        self._soc = soc or next(iter((*section.contexts, *SOCS)))
        self._graphs = GraphSet.load(package, section, self._soc)
        self._attention = AttentionGraphs.of(self._config, self._shapes, self._graphs)
        self._mlps = MlpGraphs.of(self._config, self._shapes, self._graphs, self._tiles())
        self._head = self._graphs.named("head")
        self._count = TileCount()
        # Of one thread, the caller's: it starts none.
        self._host = _native.CpuDevice(1)

    def _tiles(self) -> tuple[Tile, ...]:
        """The tiles of experts. A real NPU is timed; the emulator is not, so its tiles have written costs."""
        part = self._shapes.expert
        graphs = [g for g in self._graphs.graphs.values() if g.spec.matrices == part.matrices(self._shapes.hidden)]
        if self._target == "npu":
            return measured_tiles({graph.spec.rows: time_graph(graph) for graph in graphs})
        weights = 3 * self._shapes.hidden * part.slice_width
        return tuple(Tile(g.spec.rows, written_cost(g.spec.rows, g.session.io_bytes, weights)) for g in graphs)

    @property
    def name(self) -> str:
        return "qnn"

    @property
    def variant(self) -> str:
        return f"{self._soc} ({self._target})"

    @property
    def threads(self) -> int:
        return 0

    @property
    def shares_prefixes(self) -> bool:
        return False

    @property
    def emulated(self) -> bool:
        return self._target == "emulator"

    @property
    def measurable(self) -> bool:
        return False

    @property
    def kv_element_bytes(self) -> int:
        return 2

    @property
    def timed_rows(self) -> tuple[int, ...]:
        return self._shapes.expert.tiles

    def seconds(self) -> dict[str, float]:
        return {}

    def facts(self) -> dict[str, Any]:
        count = self._count
        return {
            "activations": "float16",
            "soc": self._soc,
            "target": self._target,
            "graphs": len(self._graphs.graphs),
            "graphs_compiled_at_load": list(self._graphs.compiled),
            "tiles": list(self._shapes.expert.tiles),
            "expert_calls": count.calls,
            "expert_rows": count.routed,
            "expert_rows_computed": count.computed,
            "expert_rows_for_nothing": count.waste,
        }

    def abandon(self) -> None:
        _ABANDONED.append(self._graphs)

    def begin_sweep(self, batch: Batch, activations: SweepArrays) -> None:
        assert isinstance(activations, NpuArrays)
        NpuPlan.of(self._config, self._shapes, batch.shape).begin(activations)
        mlps = MlpSweep(self._mlps, activations)
        attention = AttentionSweep(self._attention, batch, activations)
        reduction = HeadReduction(batch.head, activations.head, self._host)
        self._sweep = _Sweep(activations, batch, attention, mlps, mlps.nothing_routed(), batch.tokens, reduction)
        self._count = mlps.tiles

    def release(self) -> None:
        del self._sweep

    def attention(self, spec: PageSpec, address: int) -> None:
        sweep = self._sweep
        wanted = sweep.batch.wanted if spec.layer == self._config.layers - 1 else None
        sweep.attention.run(spec, address, sweep.mlps.deltas, wanted)
        if wanted is not None:
            sweep.rows = len(wanted)
            for half in (sweep.arrays.high, sweep.arrays.low):
                half[: sweep.rows] = half[wanted]

    def route(self, spec: PageSpec, address: int) -> RoutingLists:
        self._sweep.layer = self._sweep.mlps.route(spec, address, self._sweep.rows)
        return self._sweep.layer.lists

    def experts_to_prefetch(self, spec: PageSpec, address: int) -> frozenset[int]:
        return self._sweep.mlps.experts_to_prefetch(address, self._sweep.rows)

    def begin_experts(self, routing: RoutingLists) -> None:
        """The routing stays on the device."""

    def mlp(self, spec: PageSpec, address: int) -> None:
        self._sweep.layer.shared(spec, address)

    def experts(self, pages: Sequence[LentPage]) -> None:
        for spec, address in pages:
            self._sweep.layer.expert(spec, address)

    def end_experts(self) -> None:
        self._sweep.layer.end()

    def final_norm(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        assert bias is None
        sweep, a = self._sweep, self._sweep.arrays
        a.final_norm[...] = weight
        rows = sweep.reduction.plan.hidden_rows
        for first in range(0, len(rows), _HIDDEN_ROWS):
            some = rows[first : first + _HIDDEN_ROWS]
            deltas = np.stack([sweep.mlps.deltas.rows(row)[0] for row in some.tolist()])
            x = a.high[some].astype(np.float32) + a.low[some] + deltas
            x *= weight / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + np.float32(self._config.norm_eps))
            sweep.reduction.take_hidden(first, x)

    def head(self, spec: PageSpec, address: int) -> None:
        sweep, a, step = self._sweep, self._sweep.arrays, self._shapes.head.rows
        self._head.bind_page(page_layout(self._shapes, "head"), address)
        for first in range(0, sweep.reduction.plan.shape.rows, step):
            self._head.run(
                high=a.high[first:],
                low=a.low[first:],
                delta=sweep.mlps.deltas.rows(first),
                final_norm=a.final_norm,
                logits=a.head_logits,
            )
            rows = min(step, sweep.reduction.plan.shape.rows - first)
            sweep.reduction.take(first, spec.first, np.ascontiguousarray(a.head_logits[:rows, : spec.count]))


def time_graph(graph: Graph) -> float:
    """Seconds of one call on zeros, the median of a few."""
    arrays = {t.name: np.zeros(t.shape, t.dtype) for t in (*graph.spec.inputs, *graph.spec.outputs)}
    seconds = []
    for _ in range(_ROUNDS):
        begin = perf_counter()
        graph.run(**arrays)
        seconds.append(perf_counter() - begin)
    return median(seconds)
