"""The memory budget: what is needed is computed before anything large is allocated.

The arena is one allocation: pinned pages, then the ring, then the activations of the batch at hand. A long prompt takes
its activations from the ring's share and, where that is not enough, from the deepest pinned pages of each layer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from estream.engine.options import Configuration
from estream.errors import BudgetError
from estream.host.sizes import MiB, format_bytes, round_up
from estream.models.config import ModelConfig
from estream.package.manifest import Page

_HUGE_PAGE = 2 * MiB


#: Tokens that a model is prepared for; a longer prompt takes memory from reading ahead and from pinned pages.
USUAL_TOKENS = 4096


def usual_tokens(config: ModelConfig) -> int:
    """Tokens of the batch that an arena is planned for."""
    return min(config.context, USUAL_TOKENS)


def reserve_bytes(budget: int) -> int:
    """Kept free of every budget for page tables, small arrays, allocator slack."""
    return max(32 * MiB, budget // 25)


@dataclass(frozen=True)
class Floor:
    """The smallest budget for a model and a batch, and what makes it up."""

    process: int
    activations: int
    pages: int

    @staticmethod
    def of(process: int, activations: int, tape: Sequence[Page]) -> "Floor":
        # The process itself grows a little between measuring and running.
        return Floor(
            round_up(process, MiB) + 4 * MiB,
            round_up(activations, _HUGE_PAGE),
            round_up(smallest_ring(tape), _HUGE_PAGE) + _HUGE_PAGE,
        )

    @property
    def bytes(self) -> int:
        need = self.process + self.activations + self.pages
        return round_up(max(need + 32 * MiB, -(-need * 25 // 24)), MiB)

    def check(self, budget: int, tokens: int) -> None:
        """Raises BudgetError where the budget is below the floor."""
        reserve = self.bytes - self.process - self.activations - self.pages
        if budget < self.bytes:
            raise BudgetError(
                f"a memory budget of {format_bytes(budget)} is below the floor of {format_bytes(self.bytes)} for "
                f"{tokens} tokens: process {format_bytes(self.process)}, activations {format_bytes(self.activations)}, "
                f"the largest pages {format_bytes(self.pages)}, reserve {format_bytes(reserve)}; "
                "raise the budget or shorten the prompt",
                self.bytes,
            )


def smallest_ring(tape: Sequence[Page], pinned: Collection[int] = ()) -> int:
    """Twice the largest page that is not pinned, a router and an expert.

    The next layer's router may be held somewhere in the ring while the largest page needs a contiguous place, and an
    expert is kept spare where experts are predicted.
    """
    pages = [p for p in tape if p.index not in pinned]
    largest = max((p.padded_bytes for p in pages), default=0)
    return 2 * largest + sum(
        max((p.padded_bytes for p in pages if p.spec.kind == kind), default=0) for kind in ("router", "expert")
    )


def early_head_bytes(tape: Sequence[Page], ring_bytes: int, last_experts: int) -> int:
    """Head pages that may be read ahead of the last layer's experts, of which at most ``last_experts`` are used.

    They stay in the ring until those experts are done, so the whole of the experts must fit beside them.
    """
    experts = [p for p in tape if p.spec.kind == "expert"]
    of_one = sum(p.padded_bytes for p in experts if (p.spec.layer, p.spec.expert) == (experts[0].spec.layer, 0))
    return max(0, ring_bytes - last_experts * of_one - smallest_ring(tape))


@dataclass(frozen=True)
class ArenaPlan:
    """``bytes`` of the arena, ``pinned`` page indices and their offsets from its start, where those end, and the most that
    the ring behind them takes.
    """

    bytes: int
    pinned: dict[int, int]
    pinned_bytes: int
    ring_bytes: int
    everything_pinned: bool


def plan_arena(tape: Sequence[Page], capacity: int, activations: int, configuration: Configuration) -> ArenaPlan:
    """Use ``capacity`` bytes for a model whose usual batch needs ``activations`` bytes.

    All pages are pinned where they fit. Otherwise what the ring leaves is pinned, the same depth in each layer: a
    contiguous run at its start, so that the disk works while those are computed.
    """
    size = capacity // _HUGE_PAGE * _HUGE_PAGE
    everything = sum(p.padded_bytes for p in tape)
    activations = round_up(activations, _HUGE_PAGE)
    allowed = everything if configuration.pinned_bytes is None else configuration.pinned_bytes
    ring = max(configuration.ring_bytes, smallest_ring(tape))
    if everything + activations <= size and everything <= allowed:
        return ArenaPlan(size, {p.index: p.offset for p in tape}, everything, ring, True)
    room = min(size - activations - ring, allowed)
    pinned: dict[int, int] = {}
    offset = 0
    for page in _by_depth(tape):
        if offset + page.padded_bytes > room:
            break
        pinned[page.index] = offset
        offset += page.padded_bytes
    return ArenaPlan(size, pinned, offset, ring, False)


def _by_depth(tape: Sequence[Page]) -> list[Page]:
    """First pages of all layers, then second ones, and so on; the head counts as a layer."""
    depth: dict[int, int] = {}
    keyed = []
    for page in tape:
        depth[page.spec.layer] = depth.get(page.spec.layer, -1) + 1
        keyed.append((depth[page.spec.layer], page.index, page))
    return [page for _, _, page in sorted(keyed, key=lambda item: item[:2])]


@dataclass(frozen=True)
class SweepLayout:
    """How the arena is divided for one sweep: pinned pages up to ``ring_offset`` (those beyond lose their places), the
    ring, then activations from ``activations_offset`` to the end.
    """

    ring_offset: int
    ring_bytes: int
    activations_offset: int


def divide_arena(plan: ArenaPlan, tape: Sequence[Page], activations: int) -> SweepLayout:
    """Lay out one sweep. The caller has checked the floor, so the smallest ring always fits."""
    activations_offset = plan.bytes - round_up(activations, _HUGE_PAGE)
    if plan.everything_pinned and plan.pinned_bytes <= activations_offset:
        return SweepLayout(plan.pinned_bytes, 0, activations_offset)
    ring_offset = max(0, min(plan.pinned_bytes, activations_offset - smallest_ring(tape)))
    return SweepLayout(ring_offset, min(plan.ring_bytes, activations_offset - ring_offset), activations_offset)
