"""In which order pages are read.

A :class:`ReadSchedule` is fixed before the sweep. A :class:`ReadCursor` walks it, and is told what the routing turns out to
be. Neither does I/O nor knows a clock.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from estream.models.config import ModelConfig
from estream.package.manifest import Page


def expected_share(config: ModelConfig, tokens: int) -> float:
    """The share of a layer's experts that ``tokens`` tokens use, were routing uniform."""
    return float(1.0 - (1.0 - config.moe.top_k / config.moe.experts) ** tokens)


@dataclass(frozen=True)
class ReadSchedule:
    """The ``order`` in which a sweep reads the pages that are not resident.

    A ``speculative`` sweep reads a layer's experts before its routing is known: nearly all of them will be used. With fewer
    tokens the experts of ``prefetch_layers`` are prefetched: the next layer's router is applied early and names some.
    Prefetching only ever skips: an expert that was not named is read when the routing asks for it. In the last layer few
    rows are left, so there is neither; some head pages are read ahead of its experts instead.
    """

    order: tuple[Page, ...]
    speculative: bool
    prefetch_layers: frozenset[int]
    last_layer: int


def plan_reading(
    config: ModelConfig, tape: Sequence[Page], resident: Collection[int], speculative: bool, early_head_bytes: int
) -> ReadSchedule:
    """The schedule of one sweep.

    Args:
        config: the model.
        tape: all pages in tape order.
        resident: indices of pages that need not be read.
        speculative: whether experts are read before their routing is known.
        early_head_bytes: how many bytes of head pages are read ahead of the last layer's experts.

    """
    last = config.layers - 1
    layers = frozenset() if speculative else frozenset(range(1, last)) - frozenset(config.dense_layers)
    order = _reading_order(tape, last, layers, early_head_bytes)
    return ReadSchedule(tuple(p for p in order if p.index not in resident), speculative, layers, last)


def _reading_order(
    tape: Sequence[Page], last_layer: int, prefetch_layers: Collection[int], early_head_bytes: int
) -> list[Page]:
    body: list[Page] = []
    last_experts: list[Page] = []
    head = [p for p in tape if p.spec.kind == "head"]
    routers = {p.spec.layer: p for p in tape if p.spec.kind == "router"}
    for page in tape:
        kind, layer = page.spec.kind, page.spec.layer
        if kind == "head" or (kind == "router" and layer in prefetch_layers):
            continue
        if kind == "expert" and layer == last_layer:
            last_experts.append(page)
            continue
        body.append(page)
        # Prefetching needs the next layer's router before this layer's experts.
        if layer + 1 in prefetch_layers and (kind == "router" or (kind == "attention" and layer in prefetch_layers)):
            body.append(routers[layer + 1])
    early, held = 0, 0
    while early < len(head) and held + head[early].padded_bytes <= early_head_bytes:
        held += head[early].padded_bytes
        early += 1
    return [*body, *head[:early], *last_experts, *head[early:]]


@dataclass
class PrefetchStats:
    """Experts that were prefetched, and of them those that got tokens."""

    prefetched: int = 0
    used: int = 0


class ReadCursor:
    """Yields the pages of one schedule, and skips what the routing makes useless."""

    def __init__(self, schedule: ReadSchedule) -> None:
        self.schedule = schedule
        self.stats = PrefetchStats()
        self._routed: dict[int, frozenset[int]] = {}
        self._prefetched: dict[int, frozenset[int]] = {}
        self._skipped: dict[int, list[Page]] = {}
        self._missed: deque[Page] = deque()
        self._next = 0

    def prefetch(self, layer: int, experts: frozenset[int]) -> None:
        """The layer's tokens will probably use these experts, and more."""
        self._prefetched[layer] = experts
        self.stats.prefetched += len(experts)

    def routed(self, layer: int, experts: frozenset[int]) -> None:
        """The layer's tokens use exactly these experts."""
        self._routed[layer] = experts
        if layer in self._prefetched:
            self.stats.used += len(experts & self._prefetched[layer])
        self._missed.extend(p for p in self._skipped.pop(layer, ()) if p.spec.expert in experts)

    def peek(self) -> Page | None:
        """The page to read next; None where that depends on routing still unknown, or where all is read."""
        if self._missed:
            return self._missed[0]
        order = self.schedule.order
        while self._next < len(order):
            page = order[self._next]
            wanted = self._wanted(page)
            if wanted is None:
                return None
            if wanted:
                return page
            if page.spec.layer not in self._routed:
                self._skipped.setdefault(page.spec.layer, []).append(page)
            self._next += 1
        return None

    def pop(self) -> None:
        """The page that ``peek`` gave is being read."""
        if self._missed:
            self._missed.popleft()
        else:
            self._next += 1

    def _wanted(self, page: Page) -> bool | None:
        spec, schedule = page.spec, self.schedule
        if spec.kind == "head" and not schedule.speculative and schedule.last_layer:
            # Head pages stay in the ring to the end. Missed experts would come behind them and free nothing.
            return True if schedule.last_layer - 1 in self._routed else None
        if spec.kind != "expert":
            return True
        for known in (self._routed, self._prefetched):
            if spec.layer in known:
                return spec.expert in known[spec.layer]
        return True if schedule.speculative and spec.layer < schedule.last_layer else None
