"""A probe of the pipeline itself: a few layers are really streamed while an expert is really computed for every page."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from estream.configurator.simulate import Simulator
from estream.configurator.simulated import NO_BATCH, NoArrays, SimulatedClock, SimulatedDevice, SimulatedReader, Workload
from estream.configurator.storage_probe import Scratch
from estream.engine.activations import Activations
from estream.engine.device import LentPage
from estream.engine.embedding import EmbeddingReader
from estream.engine.memory import early_head_bytes, smallest_ring
from estream.engine.options import Configuration
from estream.engine.pager import Pager
from estream.engine.schedule import ReadSchedule
from estream.engine.sweep import Sweep
from estream.package.package import FinalNorm, Package

#: Layers that are streamed; the last one has few experts.
_LAYERS = 3


@dataclass(frozen=True)
class PipelineFigures:
    """``page_s`` is what the host spends on a page in seconds, ``compute_slowdown`` by how much computing takes longer."""

    page_s: float
    compute_slowdown: float


@dataclass
class _WorkingDevice(SimulatedDevice):
    """Computes one and the same thing for each expert's page, wherever that page lies."""

    work: Callable[[], None] = lambda: None

    def experts(self, pages: Sequence[LentPage]) -> None:
        for _ in pages:
            self.work()

    def _compute(self, seconds: float) -> None:
        """Only experts take time here."""


def stream_layers(
    package: Package,
    simulator: Simulator,
    configuration: Configuration,
    scratch: Scratch,
    work: Callable[[], None],
    alone: float,
) -> PipelineFigures | None:
    """Stream the first layers into ``scratch`` with the engine's own pager and sweep; None where it holds no ring.

    ``work`` takes ``alone`` seconds where nothing is read. Stalls do not count.
    """
    config, tape = simulator.first_layers(min(_LAYERS, simulator.setting.manifest.config.layers))
    if len(scratch) < smallest_ring(tape):
        return None
    workload = Workload.prompt(4096)
    reader = package.open_reader(configuration.lanes, configuration.request_bytes, True)
    pager = Pager(reader, [package.pages_path, package.embedding_path], tape, configuration.request_bytes, {})
    idle = SimulatedReader(SimulatedClock(), simulator.profile, 1, configuration.request_bytes)
    device = _WorkingDevice(idle.clock, idle, simulator.profile, config, workload, work=work)
    early = early_head_bytes(tape, len(scratch), config.moe.top_k)
    pager.begin(ReadSchedule(config, tape, frozenset(), True, early), scratch.address, len(scratch))
    sweep = Sweep(tape, device, pager, FinalNorm(np.empty(0, np.float32), None))
    begin = time.perf_counter()
    sweep.run(NO_BATCH, cast("Activations", NoArrays()), cast("EmbeddingReader", _NoEmbedding()))
    seconds = time.perf_counter() - begin
    pager.end()
    pages = sum(p.spec.kind == "expert" for p in tape if p.spec.layer < config.layers - 1) + config.moe.top_k
    host = (seconds - sweep.compute_s - pager.stall_s) / len(tape)
    return PipelineFigures(max(host, 0.0), max(1.0, sweep.compute_s / pages / alone))


class _NoEmbedding:
    def finish(self, out: np.ndarray) -> None:
        """Nobody reads rows here."""
