"""Slots: where pages lie in the arena, and the states that they go through.

A page's slot goes free -> reading -> ready -> computing -> free, and every step is checked. Pinned pages have places of
their own and stay ready between sweeps.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from estream.engine.memory import SweepLayout
from estream.engine.ring import Place, Ring
from estream.package.manifest import Page


class SlotState(Enum):
    READING = "reading"
    READY = "ready"
    COMPUTING = "computing"


@dataclass
class Slot:
    """Where a page of an index lies. ``place`` is None outside the ring: ``pinned``, or in the spare place."""

    index: int
    address: int
    state: SlotState
    ticket: int
    place: Place | None
    pinned: bool


@dataclass(frozen=True)
class Reservation:
    """Room for a page that is about to be read."""

    page: Page
    address: int
    place: Place | None


class SlotError(AssertionError):
    """A slot was used out of turn: a fault of estream itself."""


class Slots:
    """Owns the places of all pages. ``pinned`` maps page indices to addresses."""

    def __init__(self, tape: Sequence[Page], pinned: dict[int, int]) -> None:
        self._tape = tape
        self._planned = pinned
        self._pinned = pinned
        self._slots: dict[int, Slot] = {}
        self._discarded: list[Slot] = []
        self._ring, self._ring_address = Ring(0), 0
        self._spare_address, self._spare_free = 0, False

    @property
    def pinned_count(self) -> int:
        return len(self._pinned)

    @property
    def ring_bytes(self) -> int:
        return self._ring.size

    @property
    def ring_used(self) -> int:
        return self._ring.used

    @property
    def resident(self) -> frozenset[int]:
        """Pages that need not be read: pinned and whole."""
        return frozenset(index for index, slot in self._slots.items() if slot.state is SlotState.READY)

    @property
    def discarded(self) -> list[Slot]:
        """Slots of pages that were let go while they were being read."""
        return list(self._discarded)

    def assume_resident(self, indices: Collection[int]) -> None:
        """Take these pinned pages as read: what a repeated sweep finds."""
        self._slots |= {i: Slot(i, self._pinned[i], SlotState.READY, 0, None, True) for i in indices}

    def begin(self, layout: SweepLayout, arena_address: int, spare_bytes: int) -> None:
        """Divide the arena for one sweep. Pinned pages beyond the ring's start have no places in it, and are forgotten.

        ``spare_bytes`` at the end of the ring's memory are kept for one missed expert: pages that were prefetched in its
        stead may fill the ring, and they are used after it. A ring that is smaller has no spare place.
        """
        address = arena_address + layout.ring_offset
        if any(index not in self._pinned for index in self._slots):
            raise SlotError("a sweep begins while pages of the last one are in the ring")
        self._pinned = {i: at for i, at in self._planned.items() if at + self._tape[i].padded_bytes <= address}
        self._slots = {i: slot for i, slot in self._slots.items() if i in self._pinned}
        spare = spare_bytes if layout.ring_bytes >= spare_bytes else 0
        self._ring, self._ring_address = Ring(layout.ring_bytes - spare), address
        self._spare_address, self._spare_free = address + layout.ring_bytes - spare, spare > 0

    def end(self) -> None:
        """The sweep is over: nothing may be left in the ring."""
        if self._ring.used:
            raise SlotError(f"{self._ring.used} bytes are still in the ring after the sweep")

    def find(self, page: Page) -> Slot | None:
        return self._slots.get(page.index)

    def is_pinned(self, page: Page) -> bool:
        return page.index in self._pinned

    def reserve(self, page: Page) -> Reservation | None:
        """Room for a page: its pinned place, or one in the ring; None where there is none now."""
        if self.is_pinned(page):
            return Reservation(page, self._pinned[page.index], None)
        place = self._ring.take(page.padded_bytes)
        return None if place is None else Reservation(page, self._ring_address + place.offset, place)

    def reserve_spare(self, page: Page) -> Reservation | None:
        """The spare place, for an expert, where it is free."""
        if not self._spare_free or page.spec.kind != "expert":
            return None
        self._spare_free = False
        return Reservation(page, self._spare_address, None)

    def reading(self, reservation: Reservation, ticket: int) -> None:
        """The page is being read into its room."""
        page = reservation.page
        if page.index in self._slots:
            raise SlotError(f"{page.spec}: asked for twice")
        pinned = self.is_pinned(page)
        self._slots[page.index] = Slot(page.index, reservation.address, SlotState.READING, ticket, reservation.place, pinned)

    def lend(self, page: Page, slot: Slot) -> None:
        """Computing with the page begins."""
        if slot.state is not SlotState.READY:
            raise SlotError(f"{page.spec}: taken while {slot.state.value}")
        slot.state = SlotState.COMPUTING

    def give_back(self, page: Page, slot: Slot) -> None:
        """Computing with the page is over; its place is free unless it is pinned."""
        if slot.state is not SlotState.COMPUTING:
            raise SlotError(f"{page.spec}: its slot became {slot.state.value} while it was computed")
        slot.state = SlotState.READY
        if not self.is_pinned(page):
            self._free(slot)
            del self._slots[page.index]

    def discard(self, page: Page) -> Slot | None:
        """Nobody needs the page now: its place is free once its read is over. None where it is pinned and whole, or absent."""
        slot = self._slots.get(page.index)
        if slot is None or (slot.pinned and slot.state is SlotState.READY):
            return None
        self._discarded.append(self._slots.pop(page.index))
        return slot

    def settle(self, slot: Slot, whole: bool) -> None:
        """The read of a discarded page is over. A pinned one that is ``whole`` is kept."""
        self._discarded.remove(slot)
        if not slot.pinned:
            self._free(slot)
        elif whole:
            slot.state = SlotState.READY
            self._slots[slot.index] = slot

    def keep(self, indices: Collection[int]) -> None:
        """Forget every page but these, which are pinned and whole."""
        self._slots = {index: slot for index, slot in self._slots.items() if index in indices}
        for slot in self._slots.values():
            slot.state = SlotState.READY

    def forget_discarded(self) -> None:
        """Their reads were dropped."""
        self._discarded.clear()

    def pinned_slots(self) -> list[tuple[int, Slot]]:
        """Pinned pages that were asked for, by index."""
        return [(index, slot) for index, slot in self._slots.items() if index in self._pinned]

    def _free(self, slot: Slot) -> None:
        if slot.place is not None:
            self._ring.give_back(slot.place)
        else:
            self._spare_free = True
