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
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec

#: Of the experts that are prefetched with few tokens, the share that gets tokens: measured, docs/experiments.md.
PREFETCHED_USED = 0.9


@dataclass
class SimulatedClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class _Request:
    """Bytes that the storage reads at once, for the pages of some tickets; ``end`` is when they are there."""

    size: int
    seconds: float
    tickets: range
    end: float


class SimulatedReader:
    """Requests end one after another, in the order of asking, at the measured bandwidth of as many lanes as are busy."""

    def __init__(self, clock: SimulatedClock, profile: Profile, lanes: int, request_bytes: int) -> None:
        self.clock = clock
        self._storage = profile.storage
        self._lanes = lanes
        self._request_bytes = request_bytes
        self._queue: deque[_Request] = deque()
        self._ready: list[float] = []
        self._seconds: dict[tuple[int, int], float] = {}
        self.busy_until = 0.0
        self.bytes = 0
        self.read_s = 0.0

    def submit(self, file: int, offset: int, address: int, length: int, pages: Sequence[tuple[int, int, int, bool]]) -> int:
        """As the native reader: cuts a run into requests, and returns the ticket of its first page."""
        first, size = len(self._ready), self._request_bytes
        self._ready += [0.0] * len(pages)
        begun = ended = 0
        for begin in range(0, length, size):
            end = min(begin + size, length)
            while ended < len(pages) and pages[ended][0] + pages[ended][1] <= begin:
                ended += 1
            begun = max(begun, ended)
            while begun < len(pages) and pages[begun][0] < end:
                begun += 1
            self._request(end - begin, range(first + ended, first + begun))
        return first

    def _request(self, size: int, tickets: range) -> None:
        while self._queue and self._queue[0].end <= self.clock.now:
            self._queue.popleft()
        key = (min(self._lanes, 1 + len(self._queue)), size)
        if key not in self._seconds:
            self._seconds[key] = size / self._storage.rate(*key)
        seconds = self._seconds[key]
        self._queue.append(_Request(size, seconds, tickets, self.occupy(seconds)))
        self._publish(self._queue[-1])
        self.bytes += size

    def _publish(self, request: _Request) -> None:
        for ticket in request.tickets:
            self._ready[ticket] = request.end

    def occupy(self, seconds: float) -> float:
        """The storage works for so long, after all that was asked before; returns when that ends."""
        self.busy_until = max(self.clock.now, self.busy_until) + seconds
        self.read_s += seconds
        return self.busy_until

    def withdraw(self, tickets: Sequence[int]) -> int:
        """Drop the requests behind those that the lanes hold now; what is left moves up."""
        useless, dropped = set(tickets), 0
        begun = [r for r in self._queue if r.end > self.clock.now][: self._lanes]
        waiting = [r for r in self._queue if r.end > self.clock.now][self._lanes :]
        if begun:
            self.busy_until = begun[-1].end
        self._queue = deque(begun)
        for request in waiting:
            self.read_s -= request.seconds
            if useless.issuperset(request.tickets):
                dropped += request.size
                request.end = self.clock.now
            else:
                request.end = self.occupy(request.seconds)
                self._queue.append(request)
            self._publish(request)
        self.bytes -= dropped
        return dropped

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
    """The embedding rows: the lanes gather them before any page. Nobody counts their bytes here."""

    bytes = 0

    def __init__(self, clock: SimulatedClock, reader: SimulatedReader, seconds: float) -> None:
        self._clock = clock
        self._end = reader.occupy(seconds)

    def finish(self, out: np.ndarray) -> None:
        self._clock.now = max(self._clock.now, self._end)


@dataclass
class SimulatedDevice:
    """Moves the clock by what each page costs. Nobody knows the routing beforehand: it is drawn by the ``chances`` float64
    [layers, experts] of a whole batch, and ``last_chances`` [experts] of its wanted rows, from a fixed seed.
    """

    clock: SimulatedClock
    reader: SimulatedReader
    profile: Profile
    config: ModelConfig
    shape: BatchShape
    chances: np.ndarray
    last_chances: np.ndarray
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
            chances = self.last_chances if self._last(layer) else self.chances[layer]
            self._routings[layer] = draw_routing(self.config, self._rows(layer), chances, layer)
        return self._routings[layer]

    def _compute(self, seconds: float) -> None:
        """Computing alone for ``seconds``, longer for as long as the lanes take processor time and memory bandwidth."""
        clock, slowdown = self.clock, self.profile.storage.compute_slowdown
        reading = max(0.0, self.reader.busy_until - clock.now)
        slowed = min(seconds * slowdown, reading)
        spent = slowed + seconds - slowed / slowdown
        self.compute_s += spent
        clock.now += spent + self.profile.page_s


def draw_routing(config: ModelConfig, rows: int, chances: np.ndarray, seed: int) -> RoutingLists:
    """How many of ``rows`` tokens each expert gets, drawn by its chance to get any; the lists themselves stay empty."""
    moe = config.moe
    rng = np.random.default_rng(seed)
    used = min(moe.experts, max(round(float(chances.sum())), min(moe.top_k, moe.experts)))
    # Drawing without replacement by weights, after Efraimidis and Spirakis: each chance is nearly met.
    weights = -np.log1p(-np.minimum(chances, 1 - 1e-9))
    chosen = np.argsort(rng.exponential(size=moe.experts) / np.maximum(weights, 1e-12), kind="stable")[:used]
    counts = np.zeros(moe.experts, np.int64)
    counts[chosen] = 1
    shares = weights[chosen] / weights[chosen].sum()
    counts[chosen] += rng.multinomial(max(0, rows * moe.top_k - used), shares)
    return RoutingLists(np.empty(0, np.int32), np.empty(0, np.float32), np.concatenate(([0], np.cumsum(counts))))
