"""Estimates a sweep: the engine's own plan, schedule, pager and sweep run over a simulated reader and device."""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
from msgspec import structs

from estream import _native
from estream.configurator.profile import Profile
from estream.configurator.simulated import (
    NO_BATCH,
    NoArrays,
    SimulatedClock,
    SimulatedDevice,
    SimulatedEmbedding,
    SimulatedReader,
    SizeAlone,
)
from estream.engine.batch import BatchShape
from estream.engine.memory import ArenaPlan, ModelMemory
from estream.engine.options import Configuration
from estream.engine.pager import Pager
from estream.engine.reads import Reads
from estream.engine.sweep import Sweep
from estream.engine.sweep_plan import SweepPlan, SweepSetup, plan_sweep
from estream.engine.use import ExpectedUse, LearnedUse
from estream.models.config import ModelConfig
from estream.package.manifest import Manifest, Page
from estream.package.package import FinalNorm

#: Pages that are simulated one by one.
WHOLE_PAGES = 600
#: Arenas and sizes of activations that a simulator remembers.
_REMEMBERED = 64


@dataclass(frozen=True)
class SweepEstimate:
    """One sweep, estimated; times in seconds, sizes in bytes.

    ``limit`` says what decides: "read" where the lanes work for longer than the device computes, else "compute".
    """

    ttft_s: float
    stall_s: float
    compute_s: float
    read_s: float
    bytes_read: int
    peak_bytes: int

    @property
    def limit(self) -> Literal["read", "compute"]:
        return "read" if self.read_s > self.compute_s else "compute"

    def onwards(self, longer: "SweepEstimate", steps: float) -> "SweepEstimate":
        """What this sweep took, and ``steps`` times what ``longer`` took in addition; memory as there."""
        names = ("ttft_s", "stall_s", "compute_s", "read_s", "bytes_read")
        line = {n: getattr(self, n) + steps * (getattr(longer, n) - getattr(self, n)) for n in names}
        # What the first layers alone wait for must not shorten the others.
        line["ttft_s"] = max(line["ttft_s"], line["compute_s"], line["read_s"])
        line["stall_s"] = max(line["stall_s"], 0.0)
        return SweepEstimate(**line | {"bytes_read": round(line["bytes_read"]), "peak_bytes": longer.peak_bytes})

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"limit": self.limit}


@dataclass(frozen=True)
class FirstLayers:
    """A model with its first layers alone, and the pages of the whole model that its ``tape`` consists of."""

    config: ModelConfig
    tape: tuple[Page, ...]
    original: tuple[Page, ...]

    @staticmethod
    def of(manifest: Manifest, layers: int) -> "FirstLayers":
        """The head follows the last of the ``layers``."""
        if layers == manifest.config.layers:
            return FirstLayers(manifest.config, manifest.tape, manifest.tape)
        pages = tuple(p for p in manifest.tape if p.spec.layer < layers or p.spec.kind == "head")
        specs = [structs.replace(p.spec, layer=layers) if p.spec.kind == "head" else p.spec for p in pages]
        tape = tuple(structs.replace(p, index=i, spec=spec) for i, (p, spec) in enumerate(zip(pages, specs, strict=True)))
        return FirstLayers(structs.replace(manifest.config, layers=layers), tape, pages)

    def arena(self, whole: ArenaPlan) -> ArenaPlan:
        """The arena of the whole model with these pages in their places."""
        pairs = zip(self.tape, self.original, strict=True)
        pinned = {new.index: whole.pinned[old.index] for new, old in pairs if old.index in whole.pinned}
        return replace(whole, pinned=pinned)


class Simulator:
    """Estimates sweeps of one model on one machine. Deterministic; the caller checks the floor."""

    def __init__(self, memory: ModelMemory, profile: Profile, pages: int = WHOLE_PAGES, use: LearnedUse | None = None) -> None:
        """A tape of more than ``pages`` is simulated for its first layers, and for twice as many: every layer behind them
        costs the difference. ``use`` says how the model's experts are used; even where it is None.
        """
        self.memory, self.profile = memory, profile
        self.use = use or LearnedUse(memory.manifest.config)
        layers = memory.manifest.config.layers
        few = max(2, pages * layers // len(memory.manifest.tape) // 2)
        self._few = None if layers <= 2 * few else few
        # The pages of a loaded model stay what they were when it was loaded.
        kept = self.use.of_short_prompt()
        self._arena = lru_cache(_REMEMBERED)(lambda configuration: memory.plan_arena(configuration, kept))
        self._sizes = lru_cache(_REMEMBERED)(lambda shape: SizeAlone(memory.plan_arrays(shape).bytes))
        self.first_layers = lru_cache(_REMEMBERED)(lambda layers: FirstLayers.of(memory.manifest, layers))

    def estimate(
        self,
        configuration: Configuration,
        shape: BatchShape,
        *,
        repeated: bool = False,
        resident: frozenset[int] = frozenset(),
    ) -> SweepEstimate:
        """One sweep on a freshly loaded model, or, ``repeated``, with all pinned pages in the arena, or some."""
        whole = self.memory.manifest.config.layers
        kept = frozenset(self.arena(configuration).pinned) if repeated else resident
        if self._few is None:
            return self.sweep(configuration, shape, whole, kept).run()
        once = self.sweep(configuration, shape, self._few, kept).run()
        twice = self.sweep(configuration, shape, 2 * self._few, kept).run()
        return once.onwards(twice, (whole - self._few) / self._few)

    def arena(self, configuration: Configuration) -> ArenaPlan:
        """The arena as the engine plans it."""
        # How pages are read makes no difference to it.
        return self._arena(Configuration(ring_bytes=configuration.ring_bytes, pinned_bytes=configuration.pinned_bytes))

    def sweep(
        self, configuration: Configuration, shape: BatchShape, layers: int, resident: frozenset[int] = frozenset()
    ) -> "SimulatedSweep":
        """A sweep over the first ``layers`` alone, with the ``resident`` ones of the whole model's pages in the arena."""
        model = self.first_layers(layers)
        arena = model.arena(self.arena(configuration))
        setup = SweepSetup(model.config, model.tape, arena, configuration, self._sizes)
        kept = [new.index for new, old in zip(model.tape, model.original, strict=True) if old.index in resident]
        chances = self.use.chances(shape)
        last = self.use.chances(BatchShape.of_prompt(shape.wanted))[-1]
        plan = plan_sweep(setup, shape, kept, ExpectedUse(chances[:layers]))
        return SimulatedSweep(setup, plan, self.profile, self.memory.process_bytes, last)


class SimulatedSweep:
    """A model, or its first layers, ready to be swept once on a simulated clock."""

    def __init__(
        self, setup: SweepSetup, plan: SweepPlan, profile: Profile, process_bytes: int, last_chances: np.ndarray
    ) -> None:
        configuration = setup.configuration
        self._setup, self._plan, self._process_bytes = setup, plan, process_bytes
        self._clock = SimulatedClock()
        self._reader = SimulatedReader(self._clock, profile, configuration.lanes, configuration.request_bytes)
        chances = plan.schedule.use.chances
        self._device = SimulatedDevice(self._clock, self._reader, profile, setup.config, plan.shape, chances, last_chances)
        self._embedding_s = profile.storage.embedding(plan.shape.tokens)

    @property
    def pages(self) -> int:
        return len(self._setup.tape)

    def run(self) -> SweepEstimate:
        """Sweep once."""
        setup, plan = self._setup, self._plan
        reads = Reads(cast("_native.Reader", self._reader), [], self._clock)
        pager = Pager(reads, setup.tape, setup.configuration.request_bytes, dict(setup.arena.pinned))
        pager.assume_resident(plan.resident)
        sweep = Sweep(setup.tape, self._device, reads, pager, FinalNorm(np.empty(0, np.float32), None))
        embedding = SimulatedEmbedding(self._clock, self._reader, self._embedding_s)
        result = sweep.run(NO_BATCH, plan, NoArrays(), embedding, 0)
        return SweepEstimate(
            ttft_s=self._clock.now,
            stall_s=result.stall_s,
            compute_s=self._device.compute_s,
            read_s=self._reader.read_s,
            bytes_read=self._reader.bytes,
            peak_bytes=self._process_bytes + plan.layout.bytes,
        )
