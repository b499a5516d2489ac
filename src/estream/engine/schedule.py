"""In which order pages are read. Pure: no I/O, no clock; what is learnt of the routing is told to it."""

from collections.abc import Iterable, Sequence

from estream.models.config import ModelConfig
from estream.package.manifest import Page

#: Reading ahead of the routing pays only where nearly all of a layer's experts will be used.
SPECULATIVE_SHARE = 0.9


def expected_share(config: ModelConfig, rows: int) -> float:
    """The share of a layer's experts that ``rows`` tokens use, were routing uniform."""
    return float(1.0 - (1.0 - config.moe.top_k / config.moe.experts) ** rows)


class ReadSchedule:
    """Yields the pages of one sweep in reading order.

    Experts of a layer come only once its routing is known, unless nearly all of them are expected to be used. In the last
    layer, where few rows are left, as many head pages as ``early_head_bytes`` holds are read ahead of the experts.
    """

    def __init__(
        self,
        config: ModelConfig,
        tape: Sequence[Page],
        resident: frozenset[int],
        rows: int,
        early_head_bytes: int,
    ) -> None:
        self._speculative = expected_share(config, rows) >= SPECULATIVE_SHARE
        self._last_layer = config.layers - 1
        self._routed: dict[int, frozenset[int]] = {}
        self._order = self._reading_order(tape, resident, early_head_bytes)
        self._next = 0

    def _reading_order(self, tape: Sequence[Page], resident: frozenset[int], early_head_bytes: int) -> list[Page]:
        order: list[Page] = []
        late: list[Page] = []
        head = [p for p in tape if p.spec.kind == "head"]
        early = 0
        while early < len(head) and sum(p.padded_bytes for p in head[: early + 1]) <= early_head_bytes:
            early += 1
        for page in tape:
            if page.spec.kind == "head":
                continue
            (late if self._is_last_expert(page) else order).append(page)
        return [p for p in (*order, *head[:early], *late, *head[early:]) if p.index not in resident]

    def _is_last_expert(self, page: Page) -> bool:
        return page.spec.kind == "expert" and page.spec.layer == self._last_layer

    def routed(self, layer: int, experts: Iterable[int]) -> None:
        """The layer's tokens use exactly these experts."""
        self._routed[layer] = frozenset(experts)

    def peek(self) -> Page | None:
        """The page to read next; None where that depends on routing still unknown, or where all is read."""
        while self._next < len(self._order):
            page = self._order[self._next]
            wanted = self._wanted(page)
            if wanted is None:
                return None
            if wanted:
                return page
            self._next += 1
        return None

    def pop(self) -> None:
        self._next += 1

    def _wanted(self, page: Page) -> bool | None:
        if page.spec.kind != "expert":
            return True
        if page.spec.layer in self._routed:
            return page.spec.expert in self._routed[page.spec.layer]
        return True if self._speculative and page.spec.layer < self._last_layer else None
