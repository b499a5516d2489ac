"""Probes: what this machine's storage and processor do with one package's own pages. Seconds, inside the memory budget."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from statistics import median
from typing import Any

from msgspec.structs import replace

from estream import _native
from estream.configurator.compute_probe import ComputeProbe
from estream.configurator.pipeline_probe import stream_layers
from estream.configurator.profile import Profile, Storage
from estream.configurator.simulate import Simulator
from estream.configurator.storage_probe import Scratch, StorageProbe
from estream.engine.batch import BatchShape
from estream.engine.device import Device
from estream.engine.memory import ModelMemory
from estream.engine.options import Configuration, LoadOptions
from estream.errors import BudgetError
from estream.host.sizes import MiB, format_bytes
from estream.package.package import Package

#: Memory that probing takes where the budget allows, and the least that it can do with beside the largest pages.
_MOST_BYTES = 512 * MiB
#: Left of the budget for what probing allocates beside that.
_ASIDE = 16 * MiB
_ROUNDS = 3


def probe(package: Package, device: Device, options: LoadOptions, memory: ModelMemory, key: Mapping[str, Any]) -> Profile:
    """Measure storage, computing, and what they cost each other, with the package's own pages.

    Takes a few seconds and at most what the budget leaves. Every figure is the median of repeated, interleaved samples.

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
    rates = storage.rates()
    lanes, request, rate = max(((n, int(p.x), p.value) for n, c in rates.items() for p in c.points), key=lambda item: item[2])
    costs = computing.costs()
    compute_slowdown, read_slowdown = computing.interference(storage, storage.reader(lanes, request), rate)
    result = Storage(rates, storage.embedding(), compute_slowdown, read_slowdown)
    profile = Profile(
        name=f"{package.path.name} on this machine",
        kind="measured",
        storage=result,
        costs=costs,
        page_s=0.0,
        process_bytes=memory.process_bytes,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        key=key,
    )
    configuration = Configuration(lanes=lanes, request_bytes=request)
    with computing.working() as (work, alone, rest):
        figures = stream_layers(package, Simulator(memory, profile), configuration, rest, work, alone)
    # What the device still holds would keep the arena alive beside the model's own.
    device.release()
    if figures is None:  # a budget near the floor
        return replace(profile, page_s=_page_seconds(memory, profile) + storage.submit_seconds())
    return replace(profile, page_s=figures.page_s, storage=replace(result, compute_slowdown=figures.compute_slowdown))


def _page_seconds(memory: ModelMemory, profile: Profile) -> float:
    """What the host does for a page, timed by doing it: the sweep's own code over a reader and a device that do nothing."""
    layers = max(1, min(memory.manifest.config.layers, 600 * memory.manifest.config.layers // len(memory.manifest.tape)))
    simulator, samples = Simulator(memory, profile), []
    for _ in range(_ROUNDS):
        sweep = simulator.sweep(Configuration(), BatchShape.of_prompt(64), layers)
        begin = time.thread_time()
        sweep.run()
        samples.append((time.thread_time() - begin) / sweep.pages)
    return median(samples)
