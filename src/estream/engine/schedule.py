"""In which order pages are read.

A :class:`ReadSchedule` is fixed before the sweep. A :class:`ReadCursor` walks it, and is told what the routing turns out to
be. Neither does I/O nor knows a clock.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from estream.engine.use import ExpectedUse, relative_use
from estream.models.config import ModelConfig
from estream.package.manifest import Page

#: Where this part of the experts that will be used is read ahead of the routing, nothing need be named early.
COVERED = 0.5
#: What is used with this chance is taken for sure.
_CERTAIN = 0.98
#: How much each layer changes the opinion that the layers before it gave.
_NEWS = 0.5
#: An opinion counts where it differs by so many powers of two.
_DOUBT = 0.4


@dataclass(frozen=True)
class ReadSchedule:
    """The ``order`` in which a sweep reads the pages that are not resident.

    ``use`` says how probable it is that the batch uses an expert. Those of a chance of ``threshold`` or more
    are read before their layer's routing is known. Where they are too few to keep the disk busy, in ``prefetch_layers``, the
    layer's router is applied early and names more. Both only ever skip: an expert that was neither is read when the routing
    asks for it. In the last layer few rows are left, so there is neither; some head pages are read ahead of its experts.
    """

    order: tuple[Page, ...]
    use: ExpectedUse = field(compare=False)
    threshold: float
    prefetch_layers: frozenset[int]
    last_layer: int


def plan_reading(
    config: ModelConfig,
    tape: Sequence[Page],
    resident: Collection[int],
    use: ExpectedUse,
    threshold: float,
    early_head_bytes: int,
) -> ReadSchedule:
    """The schedule of one sweep.

    Args:
        config: the model.
        tape: all pages in tape order.
        resident: indices of pages that need not be read.
        use: the chance of each expert to be used.
        threshold: the chance from which on an expert is read before its routing is known.
        early_head_bytes: how many bytes of head pages are read ahead of the last layer's experts.

    """
    last = config.layers - 1
    covered = (use.chances * (use.chances >= threshold)).sum(axis=-1) >= COVERED * use.chances.sum(axis=-1)
    layers = frozenset(n for n in range(1, last) if not covered[n]) - frozenset(config.dense_layers)
    order = _reading_order(tape, last, layers, early_head_bytes)
    return ReadSchedule(tuple(p for p in order if p.index not in resident), use, threshold, layers, last)


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
        self._ahead: dict[int, frozenset[int]] = {}
        self._skipped: dict[int, list[Page]] = {}
        self._missed: deque[Page] = deque()
        self._next = 0
        #: What the layers so far say of this batch: the tokens that it counts as, relative to what was expected.
        self._relative = 1.0
        self._known = schedule.use.known

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
        if experts and layer < self.schedule.last_layer:
            news = relative_use(self.schedule.use.chances[layer], len(experts)) - self._relative
            self._relative += news * (_NEWS if self._known else 1.0)
            self._known = True

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

    def is_guess(self, page: Page) -> bool:
        """Whether nobody knows yet that the page is needed, and it may turn out useless or others be needed in its stead."""
        layer, chances = page.spec.layer, self.schedule.use.chances
        if page.spec.kind != "expert" or layer in self._routed:
            return False
        return chances[layer, page.spec.expert] < _CERTAIN or len(self._ahead_of(layer)) < len(chances[layer])

    def _wanted(self, page: Page) -> bool | None:
        spec = page.spec
        if spec.kind == "head" and self._skipped:
            # Head pages stay in the ring to the end. Missed experts would come behind them and free nothing.
            return None
        if spec.kind != "expert":
            return True
        if spec.layer in self._routed:
            return spec.expert in self._routed[spec.layer]
        if spec.layer == self.schedule.last_layer or any(layer != spec.layer for layer in self._skipped):
            return None
        if spec.layer in self.schedule.prefetch_layers and spec.layer not in self._prefetched:
            return None
        return spec.expert in self._ahead_of(spec.layer) or spec.expert in self._prefetched.get(spec.layer, ())

    def _ahead_of(self, layer: int) -> frozenset[int]:
        """The experts that are read before their routing is known: decided once, by what this sweep has shown so far."""
        if layer not in self._ahead:
            if not self._known:
                return frozenset()
            relative = self._relative if abs(np.log2(max(self._relative, 1e-3))) > _DOUBT else 1.0
            unused = (1.0 - self.schedule.use.chances[layer]) ** relative
            self._ahead[layer] = frozenset(np.flatnonzero(unused <= 1.0 - self.schedule.threshold).tolist())
        return self._ahead[layer]
