"""Chooses the configuration: the least estimated TTFT within the budget, and of near-equals the one with least memory."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from estream.configurator.profile import Profile
from estream.configurator.prompt_lengths import searched_shapes
from estream.configurator.simulate import Simulator, SweepEstimate
from estream.engine.batch import BatchShape
from estream.engine.memory import ModelMemory
from estream.engine.options import Configuration
from estream.engine.schedule import expected_share
from estream.host.sizes import MiB, round_up

#: Pages that the search simulates one by one.
SEARCH_PAGES = 300
#: Costs that differ by less than this are near-equal.
NEAR = 0.02
#: Rates that differ by less than this are equal as far as a short measurement can tell.
_NEAR_RATE = 0.06
_RINGS = (32 * MiB, 64 * MiB, 128 * MiB, 256 * MiB, 512 * MiB, 1024 * MiB)
#: Between these expected shares of used experts it is simulated whether to read ahead of the routing.
_DOUBT = (0.5, 0.99)


@dataclass(frozen=True)
class Candidate:
    """A configuration with its cost in seconds and the memory that it takes."""

    configuration: Configuration
    cost_s: float
    peak_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {"configuration": self.configuration.to_json(), "cost_s": self.cost_s, "peak_bytes": self.peak_bytes}


@dataclass(frozen=True)
class SearchResult:
    """The best candidate, and the best that differs in reading or in memory."""

    chosen: Candidate
    runner_up: Candidate | None
    tried: int


def choose(memory: ModelMemory, profile: Profile, given: Mapping[str, int], shapes: Sequence[BatchShape]) -> SearchResult:
    """Search stage by stage: request and lanes by the storage curve, then ring and pinned pages by simulation.

    The cost of a configuration is the mean, over the shapes, of TTFT on a fresh model and on one used before, so that
    pages kept between sweeps count as much as the first answer. ``given`` are values that the user has set. Deterministic.
    """
    start = Configuration(**Configuration().to_json() | reading(profile, memory) | dict(given))
    simulator = Simulator(memory, profile, SEARCH_PAGES)
    cost = _Cost(simulator, shapes)
    candidates = [cost.of(replace(start, ring_bytes=r, pinned_bytes=p)) for r, p in _arena_divisions(memory, given)]
    best = _least(candidates)
    others = [c for c in candidates if c.configuration != best.configuration]
    share = speculative_share(simulator, best.configuration)
    chosen = cost.of(replace(best.configuration, speculative_share=share))
    return SearchResult(chosen, min(others, key=_order, default=None), cost.tried)


def reading(profile: Profile, memory: ModelMemory) -> dict[str, int]:
    """Lanes and request size: of those that read nearly fastest the nearest to the defaults, so that noise does not decide."""
    largest = max(p.padded_bytes for p in memory.manifest.tape)
    rates = [
        (profile.storage.rate(lanes, int(point.x)), lanes, int(point.x))
        for lanes, curve in profile.storage.rates.items()
        for point in curve.points
        # What is in flight takes room in the ring, which may be as small as the largest pages.
        if lanes * point.x <= max(4 * largest, memory.arena_bytes // 4)
    ]
    if not rates:
        return {}
    best = max(rate for rate, _, _ in rates)
    near = [r for r in rates if r[0] >= best * (1 - _NEAR_RATE)]
    default = Configuration()

    def distance(rate: tuple[float, int, int]) -> tuple[bool, int, float, int]:
        _, lanes, request = rate
        return lanes != default.lanes, lanes, abs(math.log2(request / default.request_bytes)), request

    _, lanes, request = min(near, key=distance)
    return {"lanes": lanes, "request_bytes": request}


def _arena_divisions(memory: ModelMemory, given: Mapping[str, int]) -> list[tuple[int, int | None]]:
    """Sizes of the ring, each without pinned pages, with half of what could be pinned, and with all of it."""
    tape = memory.manifest.tape
    smallest = round_up(memory.smallest_ring, 2 * MiB)
    room = memory.arena_bytes - memory.plan_arrays(searched_shapes(memory)[-1]).bytes
    rings = sorted({smallest, *(r for r in _RINGS if smallest < r <= room)})
    everything = sum(p.padded_bytes for p in tape)
    found: list[tuple[int, int | None]] = []
    for ring in [given["ring_bytes"]] if "ring_bytes" in given else rings:
        left = max(0, min(room - ring, everything))
        pinned: list[int | None] = [0, left // 2, None] if left >= everything // 50 else [0]
        for bound in [given["pinned_bytes"]] if "pinned_bytes" in given else pinned:
            found.append((ring, bound))
    return found


class _Cost:
    def __init__(self, simulator: Simulator, shapes: Sequence[BatchShape]) -> None:
        self._simulator, self._shapes = simulator, shapes
        self.tried = 0

    def of(self, configuration: Configuration) -> Candidate:
        runs = [p for shape in self._shapes for p in self._runs(configuration, shape)]
        self.tried += 1
        return Candidate(configuration, sum(p.ttft_s for p in runs) / len(runs), max(p.peak_bytes for p in runs))

    def _runs(self, configuration: Configuration, shape: BatchShape) -> list[SweepEstimate]:
        fresh = self._simulator.estimate(configuration, shape)
        pins = bool(self._simulator.arena(configuration).pinned)
        return [fresh, self._simulator.estimate(configuration, shape, repeated=True) if pins else fresh]


def _least(candidates: list[Candidate]) -> Candidate:
    best = min(c.cost_s for c in candidates)
    near = [c for c in candidates if c.cost_s <= best * (1 + NEAR)]
    return min(near, key=lambda c: (c.peak_bytes, c.cost_s))


def _order(candidate: Candidate) -> tuple[float, int]:
    return candidate.cost_s, candidate.peak_bytes


def speculative_share(simulator: Simulator, configuration: Configuration) -> float:
    """The smallest expected share of used experts at which reading ahead of the routing is estimated to be faster."""
    memory, config = simulator.memory, simulator.memory.manifest.config

    def gain(tokens: int) -> bool:
        ahead, waiting = (
            simulator.estimate(replace(configuration, speculative_share=share), BatchShape.of_prompt(tokens)).ttft_s
            for share in (0.0, 2.0)
        )
        return ahead <= waiting

    lengths = [n for n in _doubtful_lengths(memory) if _DOUBT[0] <= expected_share(config, n) <= _DOUBT[1]]
    at = _first(lengths, gain)
    if at is None:
        return _DOUBT[1] if lengths else configuration.speculative_share
    return expected_share(config, at)


def _doubtful_lengths(memory: ModelMemory) -> list[int]:
    return [n for n in (4, 6, 8, 12, 16, 24, 32, 48, 64, 96) if n <= memory.planned_tokens]


def _first(lengths: list[int], gain: Callable[[int], bool]) -> int | None:
    """The smallest length from which on reading ahead gains, by bisection."""
    low, high = 0, len(lengths)
    while low < high:
        middle = (low + high) // 2
        if gain(lengths[middle]):
            high = middle
        else:
            low = middle + 1
    return lengths[low] if low < len(lengths) else None
