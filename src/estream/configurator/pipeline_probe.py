"""A probe of the pipeline itself: a few layers are really streamed while an expert is really computed for every page."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from estream.configurator.compute_probe import timed
from estream.configurator.simulate import Simulator
from estream.configurator.simulated import NO_BATCH, NoArrays, SimulatedClock, SimulatedDevice, SimulatedReader, SizeAlone
from estream.configurator.storage_probe import Scratch
from estream.engine.batch import BatchShape
from estream.engine.device import LentPage
from estream.engine.memory import ArenaPlan, smallest_ring
from estream.engine.options import Configuration
from estream.engine.pager import Pager
from estream.engine.reads import Reads
from estream.engine.sweep import Sweep
from estream.engine.sweep_plan import SweepSetup, plan_sweep
from estream.engine.use import ExpectedUse
from estream.package.package import FinalNorm, Package

#: Layers that are streamed; the last one has few experts.
_LAYERS = 3
#: Times that the work is timed alone, before and after.
_ALONE = 15


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
) -> PipelineFigures | None:
    """Stream the first layers into ``scratch`` with the engine's own pager and sweep; None where it holds no ring.

    Just before and after that ``work`` is timed alone, since another time of an unquiet machine would not compare. Stalls do
    not count.
    """
    model = simulator.first_layers(min(_LAYERS, simulator.memory.manifest.config.layers))
    least = smallest_ring(model.tape)
    if len(scratch) < least:
        return None
    arena = ArenaPlan(len(scratch), {}, 0, len(scratch), least)
    setup = SweepSetup(model.config, model.tape, arena, configuration, lambda _: SizeAlone(0))
    # Every expert is used, and read ahead of the routing.
    sure = np.ones((model.config.layers, model.config.moe.experts))
    plan = plan_sweep(setup, BatchShape.of_prompt(4096), (), ExpectedUse(sure))
    reader = package.open_reader(configuration.lanes, configuration.request_bytes, True)
    reads = Reads(reader, [package.pages_path, package.embedding_path])
    pager = Pager(reads, model.tape, configuration.request_bytes, {})
    idle = SimulatedReader(SimulatedClock(), simulator.profile, 1, configuration.request_bytes)
    drawn = np.full(model.config.moe.experts, model.config.moe.top_k / model.config.moe.experts)
    device = _WorkingDevice(idle.clock, idle, simulator.profile, model.config, plan.shape, sure, drawn, work=work)
    sweep = Sweep(model.tape, device, reads, pager, FinalNorm(np.empty(0, np.float32), None))
    alone = [timed(work) for _ in range(_ALONE)]
    begin = time.perf_counter()
    result = sweep.run(NO_BATCH, plan, NoArrays(), _NoEmbedding(), scratch.address)
    seconds = time.perf_counter() - begin
    alone += [timed(work) for _ in range(_ALONE)]
    last = model.config.layers - 1
    experts = sum(p.spec.kind == "expert" for p in model.tape if p.spec.layer < last) + model.config.moe.top_k
    host = (seconds - result.compute_s - result.stall_s) / len(model.tape)
    return PipelineFigures(max(host, 0.0), result.compute_s / experts / median(alone))


class _NoEmbedding:
    bytes = 0

    def finish(self, out: np.ndarray) -> None:
        """Nobody reads rows here."""
