"""What converting for the NPU adds: the sizes of the graphs, pages in their layout, and graphs compiled for named chips."""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from estream.conversion.npu.compiler import compile_model
from estream.conversion.npu.relayout import Relayout, source_quantization
from estream.conversion.npu.support import check_supported
from estream.devices.qnn.graph_models import graph_models, model_digest
from estream.devices.qnn.toolchain import SOCS, toolchain
from estream.host import limits
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec, Quantization
from estream.package.npu.pages import mlp_shapes
from estream.package.npu.section import NpuSection
from estream.package.npu.shapes import NpuShapes

logger = logging.getLogger("estream")

#: Inputs that share a scale: the group that the graphs are searched for.
NPU_GROUP = 32


@dataclass
class NpuTarget:
    """How a model is written for the NPU. ``source`` cuts the CPU's pages from which the NPU's are made; ``files`` are the
    compiled graphs by their names in the package.
    """

    section: NpuSection
    quantization: Quantization
    source: Quantization
    files: dict[str, bytes]
    _relayout: Relayout = field(repr=False)

    @staticmethod
    def of(config: ModelConfig, bits: int, socs: Sequence[str] | None) -> "NpuTarget":
        """Choose the graphs' sizes for a model with experts of ``bits``, and compile them; ``socs`` None is all known ones.

        Raises:
            OptionError: the NPU does not compute this model, a chip is not known, or the toolchain is not installed.
            DeviceError: the compiler failed.

        """
        check_supported(config)
        toolchain()
        from estream.conversion.npu import graph_sizes  # builds graphs

        shapes = graph_sizes.choose(config, bits)
        source = source_quantization(config, shapes, NPU_GROUP)
        section, files = _compiled(shapes, tuple(SOCS) if socs is None else tuple(dict.fromkeys(socs)))
        return NpuTarget(section, _quantization(config, shapes, source), source, files, Relayout(config, shapes))

    def pages(self, spec: PageSpec, page: np.ndarray) -> Iterator[tuple[PageSpec, np.ndarray]]:
        """The NPU's pages of a CPU page."""
        yield from self._relayout.pages(spec, page)


def _quantization(config: ModelConfig, shapes: NpuShapes, source: Quantization) -> Quantization:
    """Bits and groups as the source has them, slices as the graphs read them."""
    shared = mlp_shapes(shapes, "shared").slice_width
    return replace(
        source,
        expert_slices=-(-config.moe.intermediate_size // shapes.expert.slice_width),
        shared_slices=max(1, -(-config.moe.shared_intermediate_size // shared)),
        dense_slices=max(1, -(-config.intermediate_size // shared)),
    )


def _compiled(shapes: NpuShapes, socs: Sequence[str]) -> tuple[NpuSection, dict[str, bytes]]:
    """Every graph for every chip."""
    if not socs:
        return NpuSection(shapes), {}
    models = graph_models(shapes)
    jobs = [(soc, name) for soc in socs for name in models]
    logger.info("compiling %d graphs for %s", len(models), ", ".join(socs))
    # The compiler takes one core and runs in a process of its own.
    with ThreadPoolExecutor(limits.default_threads()) as pool:
        contexts = list(pool.map(lambda job: compile_model(job[1], models[job[1]], job[0]).context, jobs))
    digests = {name: model_digest(model) for name, model in models.items()}
    files = {NpuSection.file(*job): context for job, context in zip(jobs, contexts, strict=True)}
    return NpuSection(shapes, toolchain(), dict.fromkeys(socs, digests)), files
