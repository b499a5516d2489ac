"""All graphs of a model, loaded. Those that the package does not hold for this chip and toolchain are compiled now."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from estream.devices.qnn.graph_models import graph_model, model_digest
from estream.devices.qnn.sessions import Session
from estream.devices.qnn.toolchain import toolchain
from estream.package.npu.graph_specs import GraphSpec, graph_specs
from estream.package.npu.section import NpuSection
from estream.package.package import Package
from estream.package.parts import PageLayout

logger = logging.getLogger("estream")


class Graph:
    """One graph. An array stays bound, so only an address that changed is bound anew."""

    def __init__(self, spec: GraphSpec, session: Session) -> None:
        self.spec = spec
        self.session = session
        self._outputs = frozenset(tensor.name for tensor in spec.outputs)
        self._bound: dict[str, int] = {}

    def bind_page(self, layout: PageLayout, address: int) -> None:
        """Take the weights from a page that lies at ``address``."""
        for tensor in self.spec.weights:
            self._bind(tensor.name, address + layout.offset(tensor.name))

    def run(self, **arrays: np.ndarray) -> None:
        """Compute. ``arrays`` are inputs and outputs by name, in C order, at least as long as the spec says.

        Raises:
            DeviceError: the NPU failed.

        """
        for name, array in arrays.items():
            self._bind(name, array.__array_interface__["data"][0])
        self.session.run()

    def _bind(self, name: str, address: int) -> None:
        if self._bound.get(name) == address:
            return
        (self.session.bind_output if name in self._outputs else self.session.bind_input)(name, address)
        self._bound[name] = address


@dataclass(frozen=True)
class GraphSet:
    """Graphs by name. ``compiled`` names those that were compiled when they were loaded."""

    graphs: Mapping[str, Graph]
    compiled: tuple[str, ...]

    @staticmethod
    def load(package: Package, section: NpuSection, soc: str) -> "GraphSet":
        """Load every graph for a chip. Each runs once on zeros, so the backend then has all memory that it will take.

        Raises:
            OptionError: the toolchain is not installed.
            DeviceError: a graph cannot be loaded or run.

        """
        compiled: list[str] = []
        usable = section.contexts.get(soc, {}) if dict(section.toolchain) == toolchain() else {}
        graphs: dict[str, Graph] = {}
        for spec in graph_specs(section.shapes):
            model = graph_model(spec, section.shapes)
            if usable.get(spec.name) == model_digest(model):
                model = (package.path / NpuSection.file(soc, spec.name)).read_bytes()
            else:
                compiled.append(spec.name)
            graphs[spec.name] = Graph(spec, Session(spec, model, soc))
            _warm_up(graphs[spec.name])
        if compiled:
            why = _why(section, soc)
            logger.info("%s: %s, so %d of %d graphs were compiled now", package.path, why, len(compiled), len(graphs))
        return GraphSet(graphs, tuple(compiled))

    def named(self, kind: str) -> Graph:
        """The only graph of its kind."""
        return next(graph for graph in self.graphs.values() if graph.spec.kind == kind)


def _why(section: NpuSection, soc: str) -> str:
    if soc not in section.contexts:
        return f"it holds no graphs compiled for {soc}"
    if dict(section.toolchain) != toolchain():
        return f"its graphs were compiled with {_versions(section.toolchain)}, here is {_versions(toolchain())}"
    return "its graphs are of another version of estream"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _warm_up(graph: Graph) -> None:
    """The backend's own buffers exist from the first run on. They count as memory of the process."""
    arrays = {t.name: np.zeros(t.shape, t.dtype) for t in (*graph.spec.inputs, *graph.spec.outputs)}
    graph.run(**arrays)
