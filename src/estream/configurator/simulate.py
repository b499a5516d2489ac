"""Predicts a sweep: the engine's own schedule, pager and sweep run over a simulated reader and device."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from estream import _native
from estream.configurator.profile import Profile
from estream.configurator.simulated import (
    NO_BATCH,
    NoArrays,
    SimulatedClock,
    SimulatedDevice,
    SimulatedEmbedding,
    SimulatedReader,
    Workload,
)
from estream.devices.plans import plan_sweep
from estream.engine.activations import Activations
from estream.engine.batch import Batch
from estream.engine.embedding import EmbeddingReader
from estream.engine.memory import (
    ArenaPlan,
    Floor,
    SweepLayout,
    divide_arena,
    early_head_bytes,
    plan_arena,
    reserve_bytes,
    smallest_ring,
    usual_tokens,
)
from estream.engine.options import Configuration
from estream.engine.pager import Pager
from estream.engine.schedule import ReadSchedule, expected_share
from estream.engine.sweep import Sweep
from estream.models.config import ModelConfig
from estream.package.manifest import Manifest, Page
from estream.package.package import FinalNorm

#: Pages that are simulated one by one.
WHOLE_PAGES = 600


@dataclass(frozen=True)
class Setting:
    """What is fixed: the model, the memory, how activations are kept."""

    manifest: Manifest
    budget: int
    process_bytes: int
    float_activations: bool = False
    kv_element_bytes: int = 4

    @property
    def capacity(self) -> int:
        """Bytes left for the arena."""
        return self.budget - self.process_bytes - reserve_bytes(self.budget)

    def activation_bytes(self, workload: Workload) -> int:
        return plan_sweep(self.manifest, _batch(workload), self.float_activations, self.kv_element_bytes).bytes

    def floor(self, workload: Workload) -> Floor:
        return Floor.of(self.process_bytes, self.activation_bytes(workload), self.manifest.tape)

    def arena(self, configuration: Configuration) -> ArenaPlan:
        """The arena as the engine would plan it."""
        tokens = usual_tokens(self.manifest.config)
        usual = min(self.activation_bytes(Workload.prompt(tokens)), self.capacity - smallest_ring(self.manifest.tape))
        return plan_arena(self.manifest.tape, self.capacity, usual, configuration)


@dataclass(frozen=True)
class Prediction:
    """One sweep, predicted; times in seconds. ``limit`` says what decides: ``stall_s`` below a tenth of TTFT is computing."""

    ttft_s: float
    stall_s: float
    compute_s: float
    read_s: float
    bytes_read: int
    peak_bytes: int

    @property
    def limit(self) -> Literal["read", "compute"]:
        return "read" if self.read_s > self.compute_s else "compute"

    def onwards(self, longer: "Prediction", steps: float) -> "Prediction":
        """The sweep and ``steps`` times what ``longer`` took in addition; memory as there."""
        names = ("ttft_s", "stall_s", "compute_s", "read_s", "bytes_read")
        line = {n: getattr(self, n) + steps * (getattr(longer, n) - getattr(self, n)) for n in names}
        return Prediction(**line | {"bytes_read": round(line["bytes_read"]), "peak_bytes": longer.peak_bytes})

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"limit": self.limit}


class Simulator:
    """Predicts sweeps of one model on one machine. Deterministic; the caller checks the floor."""

    def __init__(self, setting: Setting, profile: Profile, pages: int = WHOLE_PAGES) -> None:
        """A tape of more than ``pages`` is simulated for its first layers, and for twice as many: every layer behind them
        costs the difference.
        """
        self.setting, self.profile = setting, profile
        layers = setting.manifest.config.layers
        few = max(2, pages * layers // len(setting.manifest.tape) // 2)
        self._few = None if layers <= 2 * few else few
        self._sizes: dict[Workload, int] = {}
        self._arenas: dict[tuple[int, int | None], ArenaPlan] = {}
        self._tapes: dict[int, tuple[ModelConfig, tuple[Page, ...]]] = {}

    def predict(self, configuration: Configuration, workload: Workload, *, repeated: bool = False) -> Prediction:
        """One sweep on a freshly loaded model, or, ``repeated``, with pinned pages in the arena."""
        whole = self.setting.manifest.config.layers
        if self._few is None:
            return self.sweep(configuration, workload, whole, repeated).run()
        once = self.sweep(configuration, workload, self._few, repeated).run()
        twice = self.sweep(configuration, workload, 2 * self._few, repeated).run()
        return once.onwards(twice, (whole - self._few) / self._few)

    def first_layers(self, layers: int) -> tuple[ModelConfig, tuple[Page, ...]]:
        """The model with only so many layers."""
        if layers not in self._tapes:
            self._tapes[layers] = _first_layers(self.setting.manifest, layers)
        return self._tapes[layers]

    def arena(self, configuration: Configuration) -> ArenaPlan:
        """The arena as the engine would plan it."""
        key = (configuration.ring_bytes, configuration.pinned_bytes)
        if key not in self._arenas:
            self._arenas[key] = self.setting.arena(configuration)
        return self._arenas[key]

    def sweep(self, configuration: Configuration, workload: Workload, layers: int, repeated: bool = False) -> "SimulatedSweep":
        """A sweep over the first ``layers`` alone."""
        if workload not in self._sizes:
            self._sizes[workload] = self.setting.activation_bytes(workload)
        plan = self.arena(configuration)
        layout = divide_arena(plan, self.setting.manifest.tape, self._sizes[workload])
        return SimulatedSweep(self, configuration, workload, plan, layout, self.first_layers(layers), repeated)


class SimulatedSweep:
    """A model, or its first layers, ready to be swept once on a simulated clock."""

    def __init__(
        self,
        simulator: Simulator,
        configuration: Configuration,
        workload: Workload,
        plan: ArenaPlan,
        layout: SweepLayout,
        model: tuple[ModelConfig, tuple[Page, ...]],
        repeated: bool,
    ) -> None:
        profile = simulator.profile
        self._setting, self._workload, self._plan, self._layout = simulator.setting, workload, plan, layout
        self._config, self._tape = model
        self._configuration = configuration
        self._clock = SimulatedClock()
        self._reader = SimulatedReader(self._clock, profile, configuration.lanes, configuration.request_bytes)
        self._device = SimulatedDevice(self._clock, self._reader, profile, self._config, workload)
        self._embedding_s = profile.storage.embedding(workload.tokens)
        kept = {page.index: offset for page, offset in self._pinned_places()}
        reader = cast("_native.Reader", self._reader)
        self._pager = Pager(reader, [], self._tape, configuration.request_bytes, kept, self._clock)
        self._resident = frozenset(kept) if repeated else frozenset()

    @property
    def pages(self) -> int:
        return len(self._tape)

    def _pinned_places(self) -> list[tuple[Page, int]]:
        end = self._layout.ring_offset
        original = [p for p in self._setting.manifest.tape if p.spec.layer < self._config.layers or p.spec.kind == "head"]
        pairs = zip(self._tape, original, strict=True)
        places = [(new, self._plan.pinned.get(old.index)) for new, old in pairs]
        return [(p, at) for p, at in places if at is not None and at + p.padded_bytes <= end]

    def run(self) -> Prediction:
        """Sweep once."""
        rows, config = self._workload, self._config
        embedding = SimulatedEmbedding(self._clock, self._reader, self._embedding_s)
        last_experts = min(config.moe.experts, rows.wanted * config.moe.top_k)
        early = early_head_bytes(self._tape, self._layout.ring_bytes, last_experts)
        speculative = expected_share(config, rows.tokens) >= self._configuration.speculative_share
        schedule = ReadSchedule(config, self._tape, self._resident, speculative, early)
        self._pager.assume_resident(self._resident)
        self._pager.begin(schedule, self._layout.ring_offset, self._layout.ring_bytes)
        sweep = Sweep(self._tape, self._device, self._pager, FinalNorm(np.empty(0, np.float32), None), self._clock)
        sweep.run(NO_BATCH, cast("Activations", NoArrays()), cast("EmbeddingReader", embedding))
        self._pager.end()
        used = self._layout.ring_offset + self._layout.ring_bytes + self._plan.bytes - self._layout.activations_offset
        return Prediction(
            ttft_s=self._clock.now,
            stall_s=self._pager.stall_s,
            compute_s=self._device.compute_s,
            read_s=self._reader.read_s,
            bytes_read=self._reader.bytes,
            peak_bytes=self._setting.process_bytes + used,
        )


def _batch(workload: Workload) -> Batch:
    """A batch of the workload's shape, for sizes alone."""
    positions: list[Sequence[int] | None] = [range(min(n, 1)) for n in workload.lengths]
    spare = workload.wanted - len(workload.lengths)
    for i, length in enumerate(workload.lengths):
        more = max(0, min(spare, length - 1))
        positions[i] = range(1 + more)
        spare -= more
    return Batch.of([np.zeros(n, np.int32) for n in workload.lengths], positions)


def _first_layers(manifest: Manifest, layers: int) -> tuple[ModelConfig, tuple[Page, ...]]:
    """The model with only its first layers; the head follows the last of them."""
    if layers == manifest.config.layers:
        return manifest.config, manifest.tape
    pages = [p for p in manifest.tape if p.spec.layer < layers or p.spec.kind == "head"]
    specs = [replace(p.spec, layer=layers) if p.spec.kind == "head" else p.spec for p in pages]
    tape = tuple(replace(p, index=i, spec=spec) for i, (p, spec) in enumerate(zip(pages, specs, strict=True)))
    return replace(manifest.config, layers=layers), tape
