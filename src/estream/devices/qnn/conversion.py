"""What converting for the NPU adds: the sizes of the graphs, pages in their layout, and graphs compiled for named chips."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from estream.devices.qnn.compiler import SOCS, compile_model, toolchain
from estream.devices.qnn.pages import mlp_shapes
from estream.devices.qnn.relayout import Relayout, source_quantization
from estream.devices.qnn.section import NpuSection
from estream.devices.qnn.shapes import NpuShapes
from estream.devices.qnn.specs import graph_specs
from estream.devices.qnn.support import check_supported
from estream.engine import machine
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec, Quantization

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
        from estream.devices.qnn import gates  # builds graphs

        shapes = gates.choose(config, bits)
        source = source_quantization(config, shapes, NPU_GROUP)
        section, files = _compiled(shapes, tuple(SOCS) if socs is None else tuple(dict.fromkeys(socs)))
        return NpuTarget(section, _quantization(config, shapes, source), source, files, Relayout(config, shapes))

    def pages(self, spec: PageSpec, page: np.ndarray) -> Iterator[tuple[PageSpec, np.ndarray]]:
        """The NPU's pages of a CPU page."""
        yield from self._relayout.pages(spec, page)


def _quantization(config: ModelConfig, shapes: NpuShapes, source: Quantization) -> Quantization:
    """Bits and groups as the source has them, slices as the graphs read them."""
    shared = mlp_shapes(shapes, "shared").width
    return replace(
        source,
        expert_slices=-(-config.moe.width // shapes.expert.width),
        shared_slices=max(1, -(-config.moe.shared_width // shared)),
        dense_slices=max(1, -(-config.dense_width // shared)),
    )


def _compiled(shapes: NpuShapes, socs: Sequence[str]) -> tuple[NpuSection, dict[str, bytes]]:
    """Every graph for every chip."""
    if not socs:
        return NpuSection(shapes), {}
    models = graph_models(shapes)
    jobs = [(soc, name) for soc in socs for name in models]
    logger.info("compiling %d graphs for %s", len(models), ", ".join(socs))
    # The compiler takes one core and runs in a process of its own.
    with ThreadPoolExecutor(machine.default_threads()) as pool:
        contexts = list(pool.map(lambda job: compile_model(job[1], models[job[1]], job[0]).context, jobs))
    digests = {name: model_digest(model) for name, model in models.items()}
    files = {NpuSection.file(*job): context for job, context in zip(jobs, contexts, strict=True)}
    return NpuSection(shapes, toolchain(), dict.fromkeys(socs, digests)), files


def graph_models(shapes: NpuShapes) -> dict[str, bytes]:
    """All graphs of a model by name, as the compiler takes them.

    Raises:
        OptionError: the toolchain is not installed.

    """
    toolchain()
    from estream.devices.qnn.graphs import build

    return {spec.name: build(spec, shapes) for spec in graph_specs(shapes)}


def model_digest(model: bytes) -> str:
    """What tells one graph from another."""
    return hashlib.sha256(model).hexdigest()
