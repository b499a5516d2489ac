"""What converting for the NPU adds: graph sizes, pages in the graphs' layout, and graphs compiled for named chips."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from estream.conversion.npu import graph_search, graph_sizes
from estream.conversion.npu.graph_search import GraphCompiler
from estream.conversion.npu.relayout import Relayout, source_quantization
from estream.conversion.npu.support import check_supported
from estream.devices.qnn.toolchain import SOCS, toolchain
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec, Quantization
from estream.package.npu.graph_specs import graph_specs
from estream.package.npu.pages import mlp_shapes
from estream.package.npu.section import NpuSection
from estream.package.npu.shapes import NpuShapes

logger = logging.getLogger("estream")

#: Inputs that share a scale.
NPU_GROUP = graph_sizes.GROUP


@dataclass
class NpuTarget:
    """How a model is written for the NPU.

    ``quantization`` goes into the package. ``source`` says how the CPU's pages are cut, of which the NPU's are made. ``files``
    are the compiled graphs by their names in the package.
    """

    section: NpuSection
    quantization: Quantization
    source: Quantization
    files: dict[str, bytes]
    _relayout: Relayout = field(repr=False)

    @staticmethod
    def of(config: ModelConfig, bits: int, socs: Sequence[str] | None) -> "NpuTarget":
        """Choose the graph sizes of a model with experts of ``bits``, and compile its graphs.

        Args:
            config: the model.
            bits: of the experts' weights, 4 or 8.
            socs: chips to compile for, keys of ``SOCS``; None for all of them.

        Raises:
            OptionError: the NPU does not compute this model, a chip is not known, or the toolchain is not installed.
            DeviceError: the compiler failed.

        """
        check_supported(config)
        toolchain()
        compiler = GraphCompiler(tuple(SOCS) if socs is None else tuple(dict.fromkeys(socs)))
        if compiler.socs:
            logger.info("compiling graphs for %s", ", ".join(compiler.socs))
        shapes = graph_sizes.npu_shapes(config, bits, graph_search.choose(config, bits, compiler))
        source = source_quantization(config, shapes, NPU_GROUP)
        section, files = _compiled(shapes, compiler)
        return NpuTarget(section, _quantization(config, shapes, source), source, files, Relayout(config, shapes))

    def pages(self, spec: PageSpec, page: np.ndarray) -> Iterator[tuple[PageSpec, np.ndarray]]:
        """The NPU's pages of a CPU page."""
        yield from self._relayout.pages(spec, page)


def _quantization(config: ModelConfig, shapes: NpuShapes, source: Quantization) -> Quantization:
    """Bits and groups of ``source``, and the slices that the graphs read."""
    shared = mlp_shapes(shapes, "shared").slice_width
    return replace(
        source,
        expert_slices=-(-config.moe.intermediate_size // shapes.expert.slice_width),
        shared_slices=max(1, -(-config.moe.shared_intermediate_size // shared)),
        dense_slices=max(1, -(-config.intermediate_size // shared)),
    )


def _compiled(shapes: NpuShapes, compiler: GraphCompiler) -> tuple[NpuSection, dict[str, bytes]]:
    """Every graph for every chip: what the manifest says of them, and the files by their names in the package."""
    if not compiler.socs:
        return NpuSection(shapes), {}
    contexts: dict[str, dict[str, str]] = {soc: {} for soc in compiler.socs}
    files: dict[str, bytes] = {}
    for graph in compiler.compile(graph_specs(shapes), shapes):
        contexts[graph.soc][graph.spec.name] = graph.digest
        files[NpuSection.file(graph.soc, graph.spec.name)] = graph.compiled.context
    return NpuSection(shapes, toolchain(), contexts), files
