"""Choosing graph sizes by the compiler's own account of the memory traffic. No graph is compiled twice."""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from estream.conversion.npu import graph_sizes
from estream.conversion.npu.compiler import Compiled, compile_model
from estream.conversion.npu.graph_sizes import GraphSizes
from estream.devices.qnn.graph_models import graph_model, model_digest
from estream.host import limits
from estream.host.sizes import format_bytes
from estream.models.config import ModelConfig
from estream.package.npu.graph_specs import GraphSpec, graph_specs
from estream.package.npu.shapes import NpuShapes

logger = logging.getLogger("estream")

#: What an expert's graph may read, over the size of its inputs: nothing is read twice.
LARGEST_EXCESS = 1.05
#: Bytes that it may read beside that: small inputs are rounded up. 10 to 21 KB at every shape that was compiled.
ROUNDING = 32 << 10


@dataclass(frozen=True)
class Figures:
    """What the compiler says of a call of one graph on one chip, in bytes.

    ``ideal`` is the size of all inputs, ``context`` that of the binary.
    """

    read: int
    ideal: int
    written: int
    spilled: int
    context: int

    @property
    def passes(self) -> bool:
        """The graph spills nothing, and reads nothing twice."""
        return self.spilled == 0 and self.read <= LARGEST_EXCESS * self.ideal + ROUNDING


@dataclass(frozen=True)
class ChipGraph:
    """A graph, compiled for the chip ``soc``. ``digest`` is that of the model that was compiled."""

    soc: str
    spec: GraphSpec
    digest: str
    compiled: Compiled

    @property
    def figures(self) -> Figures:
        traffic, ideal = self.compiled.traffic, sum(tensor.bytes for tensor in self.spec.inputs)
        return Figures(traffic.read, ideal, traffic.written, traffic.spilled, len(self.compiled.context))


class GraphCompiler:
    """Compiles graphs for chips, and keeps what it compiled: each model is compiled once for each chip."""

    def __init__(self, socs: Sequence[str], threads: int | None = None) -> None:
        """The compiler takes one core, so ``threads`` run at a time; as many as this process has cores by default."""
        self.socs = tuple(socs)
        self._threads = threads or limits.default_threads()
        self._compiled: dict[tuple[str, str], Compiled] = {}

    def compile(self, specs: Iterable[GraphSpec], shapes: NpuShapes) -> list[ChipGraph]:
        """Every graph for every chip.

        Raises:
            OptionError: a chip is not known, or the toolchain is not installed.
            DeviceError: the compiler refuses a graph.

        """
        models = [(spec, graph_model(spec, shapes)) for spec in specs]
        graphs = [(soc, spec, model, model_digest(model)) for soc in self.socs for spec, model in models]
        missing = [graph for graph in graphs if (graph[0], graph[3]) not in self._compiled]
        with ThreadPoolExecutor(self._threads) as pool:
            done = list(pool.map(lambda graph: compile_model(graph[1].name, graph[2], graph[0]), missing))
        self._compiled |= {(soc, digest): one for (soc, _, _, digest), one in zip(missing, done, strict=True)}
        return [ChipGraph(soc, spec, digest, self._compiled[soc, digest]) for soc, spec, _, digest in graphs]


def choose(config: ModelConfig, bits: int, compiler: GraphCompiler) -> GraphSizes:
    """The graph sizes of a model with experts of ``bits``: those in the table, or the first candidates that pass.

    Where ``compiler`` compiles for no chip, the first candidates are taken as they are, and a warning says so.

    Raises:
        OptionError: the model does not fit the NPU's graphs.
        DeviceError: the compiler refuses a graph.

    """
    stored = graph_sizes.stored_sizes(config, bits)
    known = [] if stored is None else [stored]
    if compiler.socs:
        return search(config, bits, compiler, chain(known, graph_sizes.candidates(config, bits)))
    if stored is not None:
        return stored
    logger.warning(
        "the graph sizes of this %s are not checked: its shape was not measured before, and --soc none compiles nothing now; "
        "graphs of its experts may spill",
        config.family,
    )
    return next(graph_sizes.candidates(config, bits))


def search(config: ModelConfig, bits: int, compiler: GraphCompiler, offered: Iterable[GraphSizes]) -> GraphSizes:
    """The first of the sizes ``offered`` whose MLP graphs pass on every chip.

    Where none do, those whose worst graph spills least are taken, and each graph that fails is named in a warning.

    Raises:
        DeviceError: the compiler refuses a graph.

    """
    failed: list[tuple[tuple[int, float], GraphSizes]] = []
    for sizes in offered:
        worst = _first_failure(graph_sizes.npu_shapes(config, bits, sizes), compiler)
        if worst is None:
            return sizes
        failed.append((worst, sizes))
    _, best = min(failed, key=lambda found: found[0])
    shapes = graph_sizes.npu_shapes(config, bits, best)
    for graph in compiler.compile(_mlps(shapes), shapes):
        if not graph.figures.passes:
            _warn(graph)
    return best


def _mlps(shapes: NpuShapes) -> list[GraphSpec]:
    """Those with most rows first: they fail first."""
    return sorted((spec for spec in graph_specs(shapes) if spec.kind == "mlp"), key=lambda spec: -spec.rows)


def _first_failure(shapes: NpuShapes, compiler: GraphCompiler) -> tuple[int, float] | None:
    """Bytes spilled, and reads over inputs, of the first graph that fails on any chip, each the most of all chips."""
    for spec in _mlps(shapes):
        figures = [graph.figures for graph in compiler.compile([spec], shapes)]
        if not all(found.passes for found in figures):
            return max(found.spilled for found in figures), max(found.read / found.ideal for found in figures)
    return None


def _warn(graph: ChipGraph) -> None:
    figures = graph.figures
    logger.warning(
        "graph '%s' for %s spills %s and reads %.2f times its inputs in each call; no graph sizes that were tried are better",
        graph.spec.name,
        graph.soc,
        format_bytes(figures.spilled) if figures.spilled else "nothing",
        figures.read / figures.ideal,
    )
