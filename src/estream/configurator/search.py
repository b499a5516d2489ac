"""Chooses the configuration: the least predicted TTFT within the budget, and of near-equals the one with least memory."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from estream.configurator.profile import Profile
from estream.configurator.simulate import Prediction, Setting, Simulator
from estream.configurator.simulated import Workload
from estream.engine.memory import smallest_ring, usual_tokens
from estream.engine.options import Configuration
from estream.engine.schedule import expected_share
from estream.host.sizes import MiB, round_up

#: Pages that the search simulates one by one.
SEARCH_PAGES = 300
#: Costs that differ by less than this are near-equal.
NEAR = 0.02
#: Rates that differ by less than this are equal as far as a short measurement can tell.
_NEAR_RATE = 0.06
#: Prompt lengths that a configuration is chosen for, where the user names none: a short and a long one.
USUAL_LENGTHS = (256, 1024)
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
class Choice:
    """The best candidate, and the best that differs in reading or in memory."""

    chosen: Candidate
    runner_up: Candidate | None
    tried: int


def usual_workloads(setting: Setting) -> tuple[Workload, ...]:
    """Prompts that a configuration is chosen for; shorter ones where the budget or the context is small."""
    longest = usual_tokens(setting.manifest.config)
    lengths = sorted({min(n, longest) for n in USUAL_LENGTHS})
    fitting = [n for n in lengths if setting.floor(Workload.prompt(n)).bytes <= setting.budget]
    return tuple(Workload.prompt(n) for n in fitting) or (Workload.prompt(1),)


def choose(setting: Setting, profile: Profile, given: Mapping[str, int], workloads: Sequence[Workload]) -> Choice:
    """Search stage by stage: request and lanes by the storage curve, then ring and pinned pages by simulation.

    The cost of a configuration is the mean, over the workloads, of TTFT on a fresh model and on one used before, so that
    pages kept between sweeps count as much as the first answer. ``given`` are values that the user has set. Deterministic.
    """
    start = Configuration(**Configuration().to_json() | reading(profile, setting) | dict(given))
    simulator = Simulator(setting, profile, SEARCH_PAGES)
    cost = _Cost(simulator, workloads)
    candidates = [cost.of(replace(start, ring_bytes=r, pinned_bytes=p)) for r, p in _memories(setting, given)]
    best = _least(candidates)
    others = [c for c in candidates if c.configuration != best.configuration]
    share = speculative_share(simulator, best.configuration)
    chosen = cost.of(replace(best.configuration, speculative_share=share))
    return Choice(chosen, min(others, key=_order, default=None), cost.tried)


def reading(profile: Profile, setting: Setting) -> dict[str, int]:
    """Lanes and request size: of those that read nearly fastest the nearest to the usual, so that noise does not decide."""
    largest = max(p.padded_bytes for p in setting.manifest.tape)
    rates = [
        (profile.storage.rate(lanes, int(point.x)), lanes, int(point.x))
        for lanes, curve in profile.storage.rates.items()
        for point in curve.points
        # What is in flight takes room in the ring, which may be as small as the largest pages.
        if lanes * point.x <= max(4 * largest, setting.capacity // 4)
    ]
    if not rates:
        return {}
    best = max(rate for rate, _, _ in rates)
    near = [r for r in rates if r[0] >= best * (1 - _NEAR_RATE)]
    usual = Configuration()
    _, lanes, request = min(near, key=lambda r: (r[1] != usual.lanes, r[1], abs(math.log2(r[2] / usual.request_bytes)), r[2]))
    return {"lanes": lanes, "request_bytes": request}


def _memories(setting: Setting, given: Mapping[str, int]) -> list[tuple[int, int | None]]:
    """Sizes of the ring, each without pinned pages, with half of what could be pinned, and with all of it."""
    tape = setting.manifest.tape
    smallest = round_up(smallest_ring(tape), 2 * MiB)
    room = setting.capacity - setting.activation_bytes(usual_workloads(setting)[-1])
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
    def __init__(self, simulator: Simulator, workloads: Sequence[Workload]) -> None:
        self._simulator, self._workloads = simulator, workloads
        self.tried = 0

    def of(self, configuration: Configuration) -> Candidate:
        runs = [p for workload in self._workloads for p in self._runs(configuration, workload)]
        self.tried += 1
        return Candidate(configuration, sum(p.ttft_s for p in runs) / len(runs), max(p.peak_bytes for p in runs))

    def _runs(self, configuration: Configuration, workload: Workload) -> list[Prediction]:
        fresh = self._simulator.predict(configuration, workload)
        pins = bool(self._simulator.arena(configuration).pinned)
        return [fresh, self._simulator.predict(configuration, workload, repeated=True) if pins else fresh]


def _least(candidates: list[Candidate]) -> Candidate:
    best = min(c.cost_s for c in candidates)
    near = [c for c in candidates if c.cost_s <= best * (1 + NEAR)]
    return min(near, key=lambda c: (c.peak_bytes, c.cost_s))


def _order(candidate: Candidate) -> tuple[float, int]:
    return candidate.cost_s, candidate.peak_bytes


def speculative_share(simulator: Simulator, configuration: Configuration) -> float:
    """The smallest expected share of used experts at which reading ahead of the routing is predicted to be faster."""
    setting, config = simulator.setting, simulator.setting.manifest.config

    def gain(tokens: int) -> bool:
        ahead, waiting = (
            simulator.predict(replace(configuration, speculative_share=share), Workload.prompt(tokens)).ttft_s
            for share in (0.0, 2.0)
        )
        return ahead <= waiting

    lengths = [n for n in _doubtful_lengths(setting) if _DOUBT[0] <= expected_share(config, n) <= _DOUBT[1]]
    at = _first(lengths, gain)
    if at is None:
        return _DOUBT[1] if lengths else configuration.speculative_share
    return expected_share(config, at)


def _doubtful_lengths(setting: Setting) -> list[int]:
    most = usual_tokens(setting.manifest.config)
    return [n for n in (4, 6, 8, 12, 16, 24, 32, 48, 64, 96) if n <= most]


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
