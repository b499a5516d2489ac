"""Chooses the configuration: what reads fastest, the smallest ring that hides reading, and all other memory for pages.

More memory never makes a prompt slower: how pages are read and how large the ring may grow do not depend on the budget, a
small budget has less of the ring, and a larger one keeps more pages, those that a smaller one keeps among them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from estream.configurator.profile import Profile
from estream.configurator.prompt_lengths import judged_shapes
from estream.configurator.simulate import Simulator, SweepEstimate
from estream.engine.batch import BatchShape
from estream.engine.memory import ModelMemory
from estream.engine.options import Configuration
from estream.engine.use import LearnedUse, even_share
from estream.host.sizes import MiB, round_up

#: Pages that the search simulates one by one.
SEARCH_PAGES = 300
#: A ring may be so much slower than a larger one: what that one takes more is taken from pages that stay.
NEAR_RING = 0.05
#: Times that differ by less are equal.
_EQUAL = 1e-9
#: A prompt that gains less by what is kept gains nothing.
_WORTHWHILE = 0.005
#: Rates that differ by less than this are equal as far as a short measurement can tell.
_NEAR_RATE = 0.06
#: A budget that leaves room for anything.
_AMPLE = 1 << 50
_RINGS = tuple(n * MiB for n in (32, 48, 64, 96, 128, 192, 256, 384, 512, 1024))
#: Between these expected shares of used experts it is simulated whether to read ahead of the routing.
_DOUBT = (0.75, 0.99)


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
    """The best candidate, and the ``others`` that were looked at."""

    chosen: Candidate
    others: tuple[Configuration, ...]
    _cost: "_Cost" = field(compare=False, repr=False)

    @property
    def tried(self) -> int:
        return 1 + len(self.others)

    @cached_property
    def runner_up(self) -> Candidate | None:
        """The best of the others. Plans tell of it, loading does not need it: the first look simulates them."""
        return min(map(self._cost.of, self.others), key=_order, default=None)


def choose(
    memory: ModelMemory,
    profile: Profile,
    given: Mapping[str, int],
    shapes: Sequence[BatchShape],
    use: LearnedUse | None = None,
) -> SearchResult:
    """Search stage by stage: request and lanes by the storage curve, then the ring, then which experts are read ahead.

    The cost of a configuration is the mean, over ``shapes``, of TTFT on a fresh model and on one used before.
    ``given`` are values that the user has set. Deterministic.
    """
    start = Configuration(**Configuration().to_json() | reading(profile, memory) | dict(given))
    # Nothing here may depend on the budget.
    ample = Simulator(replace(memory, budget_bytes=_AMPLE), profile, SEARCH_PAGES, use)
    rings = [given["ring_bytes"]] if "ring_bytes" in given else _rings(ample, replace(start, pinned_bytes=0))
    share = read_ahead_chance(ample, replace(start, ring_bytes=rings[-1], pinned_bytes=0))
    here = Simulator(memory, profile, SEARCH_PAGES, use)
    room = memory.arena_bytes - memory.plan_arrays(BatchShape.of_prompt(1)).bytes
    ring = max((r for r in rings if r <= room), default=rings[0])
    best = replace(start, ring_bytes=ring, read_ahead_chance=share)
    # Beside a smaller ring no page stays, unless all do: the next larger one would leave less room.
    partly = ring < rings[-1] and memory.manifest.pages_bytes > room
    if "pinned_bytes" not in given and (partly or not _keeping_pays(here, best)):
        best = replace(best, pinned_bytes=0)
    cost = _Cost(here, shapes)
    others = tuple(replace(best, ring_bytes=r) for r in rings if r <= room and r != ring)
    return SearchResult(cost.of(best), others, cost)


def _rings(ample: Simulator, start: Configuration) -> list[int]:
    """Rising sizes of the ring, each at least as fast as those before it for every judged prompt, short or long.

    The last one is the smallest with which none of them is slower by more than ``NEAR_RING`` than with any larger one.
    """
    smallest, shapes = round_up(ample.memory.smallest_ring, 2 * MiB), judged_shapes(ample.memory)

    def times(ring: int) -> list[float]:
        return [ample.estimate(replace(start, ring_bytes=ring), shape).ttft_s for shape in shapes]

    chain = [(smallest, times(smallest))]
    for ring in (r for r in _RINGS if r > smallest):
        found, least = times(ring), chain[-1][1]
        if all(t <= best * (1 + _EQUAL) for t, best in zip(found, least, strict=True)):
            chain.append((ring, [min(pair) for pair in zip(found, least, strict=True)]))
    best = chain[-1][1]
    near = [all(t <= b * (1 + NEAR_RING) for t, b in zip(found, best, strict=True)) for _, found in chain]
    return [ring for ring, _ in chain[: near.index(True) + 1]]


def _keeping_pays(simulator: Simulator, configuration: Configuration) -> bool:
    """Whether pages that stay between sweeps make any prompt faster."""

    def gain(shape: BatchShape) -> bool:
        first, again = (simulator.estimate(configuration, shape, repeated=kept).ttft_s for kept in (False, True))
        return again < first * (1 - _WORTHWHILE)

    return any(gain(shape) for shape in judged_shapes(simulator.memory) if simulator.memory.fits(shape))


def reading(profile: Profile, memory: ModelMemory) -> dict[str, int]:
    """Lanes and request size: of those that read nearly fastest the nearest to the defaults, so that noise does not decide."""
    largest = max(p.padded_bytes for p in memory.manifest.tape)
    rates = [
        (profile.storage.rate(lanes, int(point.x)), lanes, int(point.x))
        for lanes, curve in profile.storage.rates.items()
        for point in curve.points
        # What is in flight takes room in the ring.
        if lanes * point.x <= max(4 * largest, _RINGS[-1] // 8)
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


class _Cost:
    def __init__(self, simulator: Simulator, shapes: Sequence[BatchShape]) -> None:
        self._simulator, self._shapes = simulator, shapes

    def of(self, configuration: Configuration) -> Candidate:
        runs = [p for shape in self._shapes for p in self._runs(configuration, shape)]
        return Candidate(configuration, sum(p.ttft_s for p in runs) / len(runs), max(p.peak_bytes for p in runs))

    def _runs(self, configuration: Configuration, shape: BatchShape) -> list[SweepEstimate]:
        fresh = self._simulator.estimate(configuration, shape)
        pins = bool(self._simulator.arena(configuration).pinned)
        return [fresh, self._simulator.estimate(configuration, shape, repeated=True) if pins else fresh]


def _order(candidate: Candidate) -> tuple[float, int]:
    return candidate.cost_s, candidate.peak_bytes


def read_ahead_chance(simulator: Simulator, configuration: Configuration) -> float:
    """The smallest expected share of used experts at which reading ahead of the routing is estimated to be faster."""
    memory, config = simulator.memory, simulator.memory.manifest.config

    def gain(tokens: int) -> bool:
        ahead, waiting = (
            simulator.estimate(replace(configuration, read_ahead_chance=share), BatchShape.of_prompt(tokens)).ttft_s
            for share in (0.0, 2.0)
        )
        return ahead <= waiting

    lengths = [n for n in _doubtful_lengths(memory) if _DOUBT[0] <= even_share(config, n) <= _DOUBT[1]]
    at = _first(lengths, gain)
    if at is None:
        return _DOUBT[1] if lengths else configuration.read_ahead_chance
    return even_share(config, at)


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
