"""A reader and a device that only let time pass: the engine's own sweep and pager run on them with a simulated clock."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from estream.configurator.profile import Profile
from estream.engine.activations import Carver, SweepArrays
from estream.engine.batch import Batch, BatchShape
from estream.engine.device import LentPage
from estream.engine.head import HeadArrays, HeadShape
from estream.engine.routing import RoutingLists, experts_to_prefetch_per_token
from estream.engine.schedule import expected_share
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec

#: Of the experts that are prefetched with few tokens, the share that gets tokens: measured, docs/experiments.md.
PREFETCHED_USED = 0.9


@dataclass
class SimulatedClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedReader:
    """Requests end one after another, in the order of asking, at the measured bandwidth of as many lanes as are busy."""

    def __init__(self, clock: SimulatedClock, profile: Profile, lanes: int, request_bytes: int) -> None:
        self.clock = clock
        self._storage = profile.storage
        self._lanes = lanes
        self._request_bytes = request_bytes
        self._in_flight: deque[float] = deque()
        self._ready: list[float] = []
        self._seconds: dict[tuple[int, int], float] = {}
        self.busy_until = 0.0
        self.bytes = 0
        self.read_s = 0.0

    def submit(self, file: int, offset: int, address: int, length: int, pages: Sequence[tuple[int, int, int, bool]]) -> int:
        """As the native reader: cuts a run into requests, and returns the ticket of its first page."""
        first, size = len(self._ready), self._request_bytes
        ends = [self._request(min(size, length - begin)) for begin in range(0, length, size)]
        for at, count, _, _ in pages:
            self._ready.append(ends[(at + count - 1) // size])
        self.bytes += length
        return first

    def _request(self, size: int) -> float:
        while self._in_flight and self._in_flight[0] <= self.clock.now:
            self._in_flight.popleft()
        key = (min(self._lanes, 1 + len(self._in_flight)), size)
        if key not in self._seconds:
            self._seconds[key] = size / self._storage.rate(*key)
        return self.occupy(self._seconds[key])

    def occupy(self, seconds: float) -> float:
        """The storage works for so long, after all that was asked before; returns when that ends."""
        self.busy_until = max(self.clock.now, self.busy_until) + seconds
        self.read_s += seconds
        self._in_flight.append(self.busy_until)
        return self.busy_until

    def wait(self, ticket: int, timeout_s: float) -> tuple[str, int, int]:
        """Lets the clock run until the page is there."""
        self.clock.now = max(self.clock.now, self._ready[ticket])
        return "ready", 0, 0

    def is_published(self, ticket: int) -> bool:
        return self._ready[ticket] <= self.clock.now

    def cancel(self) -> None:
        """Nothing runs on its own here."""


@dataclass(frozen=True)
class SizeAlone:
    """Arrays of which only the bytes matter; an :class:`ArraysPlan`."""

    bytes: int
    residual_bytes: int = 0

    def carve(self, memory: np.ndarray) -> "NoArrays":
        return NoArrays()


class NoArrays:
    """Stands for activations that nobody reads."""

    residual = np.empty((0, 0), np.float32)
    head = HeadArrays.carve(Carver(), HeadShape(0), 0, 0)


NO_BATCH = Batch.of([[0]])


class SimulatedEmbedding:
    """The embedding rows: the lanes gather them before any page."""

    def __init__(self, clock: SimulatedClock, reader: SimulatedReader, seconds: float) -> None:
        self._clock = clock
        self._end = reader.occupy(seconds)

    def finish(self, out: np.ndarray) -> None:
        self._clock.now = max(self._clock.now, self._end)


@dataclass
class SimulatedDevice:
    """Moves the clock by what each page costs. Nobody knows the routing beforehand: it is drawn evenly, from a fixed seed."""

    clock: SimulatedClock
    reader: SimulatedReader
    profile: Profile
    config: ModelConfig
    shape: BatchShape
    compute_s: float = 0.0
    _routings: dict[int, RoutingLists] = field(default_factory=dict)

    name: str = "simulated"
    timed_rows: tuple[int, ...] = ()
    kv_element_bytes: int = 4

    def begin_sweep(self, batch: Batch, activations: SweepArrays) -> None:
        """Nothing has to be bound."""

    def attention(self, spec: PageSpec, address: int) -> None:
        wanted = self.shape.wanted if self._last(spec.layer) else None
        self._compute(self.profile.costs.attention(spec, self.config, self.shape, wanted))

    def route(self, spec: PageSpec, address: int) -> RoutingLists:
        self._compute(self.profile.costs.router(spec, self._rows(spec.layer)))
        return RoutingLists.none() if spec.layer in self.config.dense_layers else self._routing_of(spec.layer)

    def mlp(self, spec: PageSpec, address: int) -> None:
        self._compute(self.profile.costs.shared(spec, self._rows(spec.layer)))

    def experts_to_prefetch(self, spec: PageSpec, address: int) -> frozenset[int]:
        self._compute(self.profile.costs.router(spec, self._rows(spec.layer)))
        config = self.config.moe
        named = experts_to_prefetch_per_token(config.top_k)
        share = 1.0 - (1.0 - named / config.experts) ** self._rows(spec.layer)
        used = sorted(self._routing_of(spec.layer).used)
        others = [e for e in range(config.experts) if e not in set(used)]
        count = min(len(used), max(1, round(share * config.experts)))
        hits = max(1, round(PREFETCHED_USED * count))
        return frozenset(used[:hits] + others[: count - hits])

    def begin_experts(self, routing: RoutingLists) -> None:
        self._routing = routing

    def experts(self, pages: Sequence[LentPage]) -> None:
        for spec, _ in pages:
            self._compute(self.profile.costs.expert(spec, self._routing.count(spec.expert)))

    def end_experts(self) -> None:
        """Nothing is left to combine."""

    def final_norm(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        """A few rows: no time worth counting."""

    def release(self) -> None:
        """Nothing is bound."""

    def head(self, spec: PageSpec, address: int) -> None:
        self._compute(self.profile.costs.head(spec, self.shape.head.rows))

    def _last(self, layer: int) -> bool:
        return layer == self.config.layers - 1

    def _rows(self, layer: int) -> int:
        return self.shape.wanted if self._last(layer) else self.shape.tokens

    def _routing_of(self, layer: int) -> RoutingLists:
        if layer not in self._routings:
            self._routings[layer] = draw_routing(self.config, self._rows(layer), layer)
        return self._routings[layer]

    def _compute(self, seconds: float) -> None:
        """Computing alone for ``seconds``, longer for as long as the lanes take processor time and memory bandwidth."""
        clock, slowdown = self.clock, self.profile.storage.compute_slowdown
        reading = max(0.0, self.reader.busy_until - clock.now)
        slowed = min(seconds * slowdown, reading)
        spent = slowed + seconds - slowed / slowdown
        self.compute_s += spent
        clock.now += spent + self.profile.page_s


def draw_routing(config: ModelConfig, rows: int, seed: int) -> RoutingLists:
    """How many of ``rows`` tokens each expert gets, drawn evenly; the lists themselves stay empty."""
    moe = config.moe
    rng = np.random.default_rng(seed)
    used = round(expected_share(config, rows) * moe.experts)
    chosen = rng.permutation(moe.experts)[: max(used, min(moe.top_k, moe.experts))]
    counts = np.zeros(moe.experts, np.int64)
    counts[chosen] = 1
    counts[chosen] += rng.multinomial(max(0, rows * moe.top_k - len(chosen)), np.full(len(chosen), 1 / len(chosen)))
    return RoutingLists(np.empty(0, np.int32), np.empty(0, np.float32), np.concatenate(([0], np.cumsum(counts))))
