"""The memory budget: what is needed is computed before anything large is allocated.

The arena is one allocation: pinned pages, then the ring, then the activations of the batch at hand. What a long prompt needs
for those is taken from the pinned pages that are worth least; a short one after it reads and keeps them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from estream.engine.activations import ArraysPlanner
from estream.engine.batch import BatchShape
from estream.engine.options import Configuration
from estream.errors import BudgetError
from estream.host import limits
from estream.host.sizes import MiB, format_bytes, round_up
from estream.package.manifest import Manifest, Page

_HUGE_PAGE = 2 * MiB
#: Tokens of the prompt that an arena is planned for; a longer one takes memory from the ring and from pinned pages.
PLANNED_TOKENS = 4096
#: Chances of use are told apart in so many steps.
_SURENESS = 8
#: Tokens of a batch beyond which computing gains nothing.
RESIDENT_TOKENS = 8192


@dataclass(frozen=True)
class Floor:
    """The smallest budget for a model and a batch, and what makes it up. Sizes in bytes."""

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


def smallest_ring(tape: Sequence[Page]) -> int:
    """Bytes of twice the largest page, a router and an expert.

    The next layer's router may be held somewhere in the ring while the largest page needs a contiguous place, and room for
    one expert is kept spare where experts are prefetched.
    """

    def largest(kinds: Sequence[str]) -> int:
        return max((p.padded_bytes for p in tape if p.spec.kind in kinds), default=0)

    return 2 * max((p.padded_bytes for p in tape), default=0) + largest(["router"]) + largest(["expert"])


@dataclass(frozen=True)
class ArenaPlan:
    """The arena of a loaded model: its ``bytes``; ``pinned`` page indices with their offsets from its start; where those end;
    the most that the ring behind them takes, and the least that it needs.
    """

    bytes: int
    pinned: dict[int, int]
    pinned_bytes: int
    ring_bytes: int
    smallest_ring: int
    everything_pinned: bool = False


@dataclass(frozen=True)
class SweepLayout:
    """How the arena is divided for one sweep: pinned pages up to ``ring_offset`` (those beyond lose their places), the
    ring, then activations from ``activations_offset`` to the end. Offsets and sizes in bytes.
    """

    ring_offset: int
    ring_bytes: int
    activations_offset: int
    arena_bytes: int

    @property
    def bytes(self) -> int:
        """What the sweep uses of the arena."""
        return self.ring_offset + self.ring_bytes + self.arena_bytes - self.activations_offset


def divide_arena(arena: ArenaPlan, activations: int) -> SweepLayout:
    """Lay out one sweep that needs ``activations`` bytes. The caller has checked the floor, so the smallest ring fits."""
    activations_offset = arena.bytes - round_up(activations, _HUGE_PAGE)
    if arena.everything_pinned and arena.pinned_bytes <= activations_offset:
        return SweepLayout(arena.pinned_bytes, 0, activations_offset, arena.bytes)
    ring = min(arena.ring_bytes, activations_offset)
    return SweepLayout(min(arena.pinned_bytes, activations_offset - ring), ring, activations_offset, arena.bytes)


@dataclass(frozen=True)
class ModelMemory:
    """A model within a budget: what this machine grants, and what each batch would need of it. Sizes in bytes.

    ``budget_bytes`` bounds the whole process, of which ``process_bytes`` were resident before anything was loaded.
    """

    manifest: Manifest
    budget_bytes: int
    process_bytes: int
    plan_arrays: ArraysPlanner

    @property
    def reserve_bytes(self) -> int:
        """Kept free for page tables, small arrays and the allocator's slack."""
        return max(32 * MiB, self.budget_bytes // 25)

    @property
    def arena_bytes(self) -> int:
        """The most that the arena may take."""
        return self.budget_bytes - self.process_bytes - self.reserve_bytes

    @cached_property
    def smallest_ring(self) -> int:
        return smallest_ring(self.manifest.tape)

    @property
    def planned_tokens(self) -> int:
        """Tokens of the prompt that the arena is planned for."""
        return min(self.manifest.config.context, PLANNED_TOKENS)

    @cached_property
    def planned_activations(self) -> int:
        """Activations of that prompt, as far as the budget has room for them."""
        planned = self.plan_arrays(BatchShape.of_prompt(self.planned_tokens)).bytes
        return min(planned, self.arena_bytes - self.smallest_ring)

    def floor(self, shape: BatchShape) -> Floor:
        return Floor.of(self.process_bytes, self.plan_arrays(shape).bytes, self.manifest.tape)

    def check(self, shape: BatchShape) -> None:
        """Raises BudgetError where the budget is below the floor of a batch."""
        self.floor(shape).check(self.budget_bytes, shape.tokens)

    def check_scratch(self, size: int) -> None:
        """Raises BudgetError where ``size`` bytes beside all that is in memory now would go past the budget."""
        now = limits.resident_bytes()
        if now + size > self.budget_bytes:
            raise BudgetError(
                f"tokenizing this prompt takes {format_bytes(size)} beside {format_bytes(now)} in memory, and the budget is "
                f"{format_bytes(self.budget_bytes)}; shorten the prompt, or give its token ids",
                round_up(now + size, MiB),
            )

    def fits(self, shape: BatchShape) -> bool:
        return self.floor(shape).bytes <= self.budget_bytes

    def keeps_pages(self, arena: ArenaPlan, shape: BatchShape) -> bool:
        """Whether a batch leaves all pages in memory where they are so. There, a longer batch saves no reading, so this one
        is to be no longer than computing gains from; where pages are read, the longest batch reads the least for a token.
        """
        if not arena.everything_pinned or len(shape.lengths) == 1:
            return True
        activations = round_up(self.plan_arrays(shape).bytes, _HUGE_PAGE)
        return shape.tokens <= RESIDENT_TOKENS and arena.pinned_bytes + activations <= arena.bytes

    def plan_arena(self, configuration: Configuration, chances: np.ndarray | None = None) -> ArenaPlan:
        """Divide the budget between pinned pages and ring.

        All pages are pinned where they fit. Otherwise what the ring and a short prompt leave is: first pages that are used
        most surely, and of alike ones the same depth in each layer: a run at its start, so that the disk works while those
        are computed. ``chances`` float64 [layers, experts] tell how probable it is that a short prompt uses an expert; where
        they are not known all are alike.
        """
        tape, size = self.manifest.tape, self.arena_bytes // _HUGE_PAGE * _HUGE_PAGE
        everything = sum(p.padded_bytes for p in tape)
        least = round_up(self.plan_arrays(BatchShape.of_prompt(1)).bytes, _HUGE_PAGE)
        allowed = everything if configuration.pinned_bytes is None else configuration.pinned_bytes
        ring = max(configuration.ring_bytes, self.smallest_ring)
        if everything <= min(size - least, allowed):
            offsets = {p.index: p.offset for p in tape}
            return ArenaPlan(size, offsets, everything, ring, self.smallest_ring, everything_pinned=True)
        kept = _fitting(_by_worth(tape, chances), min(size - least - ring, allowed))
        # Those that a long prompt leaves alone come first. Each part lies in tape order, so that neighbours are read together.
        long = round_up(self.planned_activations, _HUGE_PAGE)
        surest = _fitting(kept, size - long - ring)
        pinned: dict[int, int] = {}
        offset = 0
        for page in (*sorted(surest, key=_index), *sorted(kept[len(surest) :], key=_index)):
            pinned[page.index] = offset
            offset += page.padded_bytes
        return ArenaPlan(size, pinned, offset, ring, self.smallest_ring)


def _index(page: Page) -> int:
    return page.index


def _fitting(pages: Sequence[Page], room: int) -> list[Page]:
    """The first pages that fit."""
    ends = accumulate(page.padded_bytes for page in pages)
    return [page for page, end in zip(pages, ends, strict=True) if end <= room]


def _by_worth(tape: Sequence[Page], chances: np.ndarray | None) -> list[Page]:
    """The surest pages first; of alike ones first those of all layers that come first there. The head counts as a layer."""
    sure = {} if chances is None else {(la, e): round(c * _SURENESS) for (la, e), c in np.ndenumerate(chances)}
    depth: dict[tuple[int, int], int] = {}
    keyed = []
    for page in tape:
        layer = page.spec.layer
        worth = sure.get((layer, page.spec.expert), _SURENESS)
        depth[layer, worth] = depth.get((layer, worth), -1) + 1
        keyed.append((-worth, depth[layer, worth], page.index, page))
    return [page for *_, page in sorted(keyed, key=lambda item: item[:3])]
