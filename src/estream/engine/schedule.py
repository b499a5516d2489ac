"""In which order pages are read. Pure: no I/O, no clock; what is learnt of the routing is told to it."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from estream.models.config import ModelConfig
from estream.package.manifest import Page


def expected_share(config: ModelConfig, rows: int) -> float:
    """The share of a layer's experts that ``rows`` tokens use, were routing uniform."""
    return float(1.0 - (1.0 - config.moe.top_k / config.moe.experts) ** rows)


@dataclass
class PredictionStats:
    """Experts that were predicted, and of them those that got tokens."""

    predicted: int = 0
    right: int = 0


class ReadSchedule:
    """Yields the pages of one sweep in reading order.

    Experts of a layer come before its routing is known only in a ``speculative`` sweep, where nearly all of them are
    expected to be used, or, with fewer tokens, where they are predicted. A prediction only ever skips: a missed expert
    is read when the routing tells. In the last layer, where few rows are left, there is neither; as many head pages as
    ``early_head_bytes`` holds are read ahead of its experts.
    """

    def __init__(
        self,
        config: ModelConfig,
        tape: Sequence[Page],
        resident: Collection[int],
        speculative: bool,
        early_head_bytes: int,
    ) -> None:
        self.speculative = speculative
        self.prediction = PredictionStats()
        self._last_layer = config.layers - 1
        self._dense = frozenset(config.dense_layers)
        self._routed: dict[int, frozenset[int]] = {}
        self._predicted: dict[int, frozenset[int]] = {}
        self._skipped: dict[int, list[Page]] = {}
        self._missed: deque[Page] = deque()
        self._order = [p for p in self._reading_order(tape, early_head_bytes) if p.index not in resident]
        self._next = 0

    def predicts(self, layer: int) -> bool:
        """Whether a prediction for this layer is of use."""
        return not self.speculative and 0 < layer < self._last_layer and layer not in self._dense

    def _reading_order(self, tape: Sequence[Page], early_head_bytes: int) -> list[Page]:
        body: list[Page] = []
        last_experts: list[Page] = []
        head = [p for p in tape if p.spec.kind == "head"]
        routers = {p.spec.layer: p for p in tape if p.spec.kind == "router"}
        for page in tape:
            spec = page.spec
            if spec.kind == "head" or (spec.kind == "router" and self.predicts(spec.layer)):
                continue
            if spec.kind == "expert" and spec.layer == self._last_layer:
                last_experts.append(page)
                continue
            body.append(page)
            # A prediction needs the next layer's router before this layer's experts.
            if (spec.kind == "router" and self.predicts(spec.layer + 1)) or (
                spec.kind == "attention" and self.predicts(spec.layer) and self.predicts(spec.layer + 1)
            ):
                body.append(routers[spec.layer + 1])
        early, held = 0, 0
        while early < len(head) and held + head[early].padded_bytes <= early_head_bytes:
            held += head[early].padded_bytes
            early += 1
        return [*body, *head[:early], *last_experts, *head[early:]]

    def predict(self, layer: int, experts: frozenset[int]) -> None:
        """The layer's tokens will probably use these experts, and more."""
        self._predicted[layer] = experts
        self.prediction.predicted += len(experts)

    def routed(self, layer: int, experts: frozenset[int]) -> None:
        """The layer's tokens use exactly these experts."""
        self._routed[layer] = experts
        if layer in self._predicted:
            self.prediction.right += len(experts & self._predicted[layer])
        self._missed.extend(p for p in self._skipped.pop(layer, ()) if p.spec.expert in experts)

    def peek(self) -> Page | None:
        """The page to read next; None where that depends on routing still unknown, or where all is read."""
        if self._missed:
            return self._missed[0]
        while self._next < len(self._order):
            page = self._order[self._next]
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
        spec = page.spec
        if spec.kind == "head" and not self.speculative and self._last_layer - 1 not in self._routed and self._last_layer:
            # Head pages stay in the ring to the end; experts that were missed would come behind them and free nothing.
            return None
        if spec.kind != "expert":
            return True
        for known in (self._routed, self._predicted):
            if spec.layer in known:
                return spec.expert in known[spec.layer]
        return True if self.speculative and spec.layer < self._last_layer else None
