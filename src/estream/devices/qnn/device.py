"""The NPU device: binds pages and arrays to a few compiled graphs that serve every layer and every expert."""

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from estream.devices.qnn import target
from estream.devices.qnn.arrays import NpuArrays, NpuPlan
from estream.devices.qnn.attention import NpuAttention
from estream.devices.qnn.graph_set import Graph, GraphSet
from estream.devices.qnn.mlp import NpuMlp
from estream.devices.qnn.tiles import Tile, measured_tiles, written_cost
from estream.devices.qnn.toolchain import SOCS
from estream.engine.activations import SweepArrays
from estream.engine.batch import Batch
from estream.engine.device import LentPage
from estream.engine.routing import RoutingLists
from estream.errors import OptionError
from estream.package.layout import PageSpec
from estream.package.npu.pages import page_layout
from estream.package.package import Package

_ROUNDS = 5
#: In a forked child the runtime's threads are gone, and its destructors would wait for them: what is here stays for good.
_ABANDONED: list[object] = []


class QnnDevice:
    """Runs a package for the NPU on the chip ``soc``: really, or on the vendor's emulator of it."""

    def __init__(self, package: Package, soc: str | None = None) -> None:
        """Load the graphs; those that the package does not hold for this chip and toolchain are compiled.

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
        self._attention = NpuAttention(self._config, self._shapes, self._graphs)
        self._mlp = NpuMlp(self._config, self._shapes, self._graphs, self._tiles())
        self._head = self._graphs.named("head")

    def _tiles(self) -> tuple[Tile, ...]:
        """Tiles for experts, by what an NPU was measured to take; by written costs where there is none to be measured."""
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
        tiles = self._mlp.tiles
        return {
            "activations": "float16",
            "soc": self._soc,
            "target": self._target,
            "graphs": len(self._graphs.graphs),
            "graphs_compiled_at_load": list(self._graphs.compiled),
            "tiles": list(self._shapes.expert.tiles),
            "expert_calls": tiles.calls,
            "expert_rows": tiles.routed,
            "expert_rows_computed": tiles.computed,
            "expert_rows_for_nothing": tiles.waste,
        }

    def abandon(self) -> None:
        _ABANDONED.append(self._graphs)

    def begin_sweep(self, batch: Batch, activations: SweepArrays) -> None:
        assert isinstance(activations, NpuArrays)
        self._a, self._batch = activations, batch
        NpuPlan.of(self._config, self._shapes, batch).begin(activations)
        self._rows = batch.tokens
        self._attention.begin(batch, activations)
        self._mlp.begin(activations)

    def release(self) -> None:
        del self._a, self._batch
        self._attention.release()
        self._mlp.release()

    def attention(self, spec: PageSpec, address: int) -> None:
        last = spec.layer == self._config.layers - 1
        wanted = self._batch.wanted if last else None
        self._attention.run(spec, address, self._mlp.deltas, wanted)
        if wanted is not None:
            self._rows = len(wanted)
            for half in (self._a.high, self._a.low):
                half[: self._rows] = half[wanted]

    def route(self, spec: PageSpec, address: int) -> RoutingLists:
        return self._mlp.route(spec, address, self._rows)

    def predict(self, spec: PageSpec, address: int) -> frozenset[int]:
        return self._mlp.predict(address, self._rows)

    def begin_experts(self, routing: RoutingLists) -> None:
        self._mlp.begin_experts()

    def shared(self, spec: PageSpec, address: int) -> None:
        self._mlp.shared(spec, address)

    def experts(self, pages: Sequence[LentPage]) -> None:
        for spec, address in pages:
            self._mlp.expert(spec, address)

    def end_experts(self) -> None:
        self._mlp.end_experts()

    def final_norm(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        assert bias is None
        self._a.final_norm[...] = weight

    def head(self, spec: PageSpec, address: int) -> None:
        a, step = self._a, self._shapes.head.rows
        self._head.bind_page(page_layout(self._shapes, "head"), address)
        for first in range(0, self._rows, step):
            self._head.run(
                high=a.high[first:],
                low=a.low[first:],
                delta=self._mlp.deltas.rows(first),
                final_norm=a.final_norm,
                logits=a.head_logits,
            )
            part = slice(first, min(first + step, self._rows))
            a.logits[part, spec.first : spec.first + spec.count] = a.head_logits[: part.stop - first, : spec.count]


def time_graph(graph: Graph) -> float:
    """Seconds of one call on zeros, the median of a few."""
    arrays = {t.name: np.zeros(t.shape, t.dtype) for t in (*graph.spec.inputs, *graph.spec.outputs)}
    seconds = []
    for _ in range(_ROUNDS):
        begin = perf_counter()
        graph.run(**arrays)
        seconds.append(perf_counter() - begin)
    return median(seconds)
