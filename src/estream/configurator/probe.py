"""Probes: what this machine's storage and processor do with one package's own pages. Seconds, inside the memory budget."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from statistics import median
from typing import Any

from msgspec.structs import replace

from estream import _native
from estream.configurator.compute_probe import ComputeProbe, interference
from estream.configurator.curve import quietest
from estream.configurator.pipeline_probe import PipelineFigures, stream_layers
from estream.configurator.profile import Profile, Storage
from estream.configurator.simulate import Simulator
from estream.configurator.storage_probe import Scratch, StorageProbe
from estream.engine.batch import BatchShape
from estream.engine.device import Device
from estream.engine.memory import ModelMemory
from estream.engine.options import Configuration, LoadOptions
from estream.errors import BudgetError
from estream.host.busy import Others, look
from estream.host.sizes import MiB, format_bytes
from estream.package.package import Package

#: Memory that probing takes where the budget allows, and the least that it can do with beside the largest pages.
_MOST_BYTES = 512 * MiB
#: Left of the budget for what probing allocates beside that.
_ASIDE = 16 * MiB
#: No round begins later, and so measuring takes about as long.
PROBE_SECONDS = 7.0
#: Rounds over all that is measured, and the pause around each in which the machine shows what others do.
_ROUNDS, _LOOK_SECONDS = 4, 0.12


def probe(package: Package, device: Device, options: LoadOptions, memory: ModelMemory, key: Mapping[str, Any]) -> Profile:
    """Measure storage, computing, and what they cost each other, with the package's own pages.

    Takes a few seconds and at most what the budget leaves. Every figure is the quietest of samples that are repeated round
    after round; factors of interference are medians of ratios, each within one moment.

    Raises:
        BudgetError: the budget leaves too little memory to probe with.
        ReadError: the package could not be read.

    """
    size = min(_MOST_BYTES, memory.arena_bytes - _ASIDE) // (2 * MiB) * 2 * MiB
    least = memory.floor(BatchShape.of_prompt(1))
    if size < least.pages + least.activations:
        raise BudgetError(f"a memory budget of {format_bytes(memory.budget_bytes)} leaves no room for probing", least.bytes)
    arena = _native.Arena(size)
    arena.populate(0, size)
    pages = max(size // 2, least.pages)
    scratch = Scratch(arena.bytes(), arena.address)
    storage = StorageProbe(package, options.direct_io, scratch.part(0, pages))
    computing = ComputeProbe(package, device, memory.plan_arrays, scratch, pages)
    rounds = _Rounds(package, memory, key)
    end = time.monotonic() + PROBE_SECONDS
    for number in range(_ROUNDS):
        if number == 0 or time.monotonic() < end:
            rounds.measure(storage, computing)
    # What the device still holds would keep the arena alive beside the model's own.
    device.release()
    return rounds.profile(storage, computing)


class _Rounds:
    """What is gathered beside storage and computing, round by round: interference, the host's own time, and others' work."""

    def __init__(self, package: Package, memory: ModelMemory, key: Mapping[str, Any]) -> None:
        self._package, self._memory, self._key = package, memory, key
        self._slowdowns: list[tuple[float, float]] = []
        self._streamed: list[PipelineFigures] = []
        self._others: list[Others] = []

    def measure(self, storage: StorageProbe, computing: ComputeProbe) -> None:
        """One round of everything: a neighbour that disturbs one round leaves the others alone."""
        self._others.append(look(self._package.path, _LOOK_SECONDS))
        storage.measure()
        computing.measure()
        lanes, request, rate = max(
            ((n, int(p.x), p.value) for n, c in storage.rates().items() for p in c.points), key=lambda item: item[2]
        )
        with computing.working() as (work, rest):
            aside = storage.into(rest)
            self._slowdowns.append(interference(work, aside, aside.reader(lanes, request), rate))
            simulator = Simulator(self._memory, self._so_far(storage, computing))
            configuration = Configuration(lanes=lanes, request_bytes=request)
            figures = stream_layers(self._package, simulator, configuration, rest, work)
        if figures is not None:
            self._streamed.append(figures)

    def _so_far(self, storage: StorageProbe, computing: ComputeProbe) -> Profile:
        slower = [max(1.0, median(factors)) for factors in zip(*self._slowdowns, strict=True)]
        return Profile(
            name=f"{self._package.path.name} on this machine",
            kind="measured",
            storage=Storage(storage.rates(), storage.embedding(), *slower),
            costs=computing.costs(),
            page_s=0.0,
            process_bytes=self._memory.process_bytes,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            others=Others.mean(self._others).share,
            key=self._key,
        )

    def profile(self, storage: StorageProbe, computing: ComputeProbe) -> Profile:
        """What all rounds came to."""
        self._others.append(look(self._package.path, _LOOK_SECONDS))
        profile = self._so_far(storage, computing)
        if not self._streamed:  # a budget near the floor
            return replace(profile, page_s=_page_seconds(self._memory, profile) + storage.submit_seconds())
        slower = max(1.0, median(f.compute_slowdown for f in self._streamed))
        return replace(
            profile,
            page_s=quietest(f.page_s for f in self._streamed),
            storage=replace(profile.storage, compute_slowdown=slower),
        )


def _page_seconds(memory: ModelMemory, profile: Profile) -> float:
    """What the host does for a page, timed by doing it: the sweep's own code over a reader and a device that do nothing."""
    layers = max(1, min(memory.manifest.config.layers, 600 * memory.manifest.config.layers // len(memory.manifest.tape)))
    simulator, samples = Simulator(memory, profile), []
    for _ in range(_ROUNDS):
        sweep = simulator.sweep(Configuration(), BatchShape.of_prompt(64), layers)
        begin = time.thread_time()
        sweep.run()
        samples.append((time.thread_time() - begin) / sweep.pages)
    return min(samples)
