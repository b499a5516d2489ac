"""The pager: brings pages into the arena in reading order and lends them to the device.

A page is lent only after its bytes have arrived and its checksum is right. Its place is never written while a computation
may read it: :class:`Slots` checks every step.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from estream.engine.reads import PAGES_FILE, Reads
from estream.engine.schedule import PrefetchStats, ReadCursor
from estream.engine.slots import Reservation, Slot, SlotError, Slots, SlotState
from estream.engine.sweep_plan import SweepPlan
from estream.engine.timeline import Timeline
from estream.package.manifest import Page

#: The most pages that are lent together, and the part of the ring that they may hold back from reading ahead.
_LENT_PAGES, _LENT_SHARE = 16, 4


class Pager:
    """Reads the pages of one sweep after another. Not thread-safe: one sweep runs at a time."""

    def __init__(self, reads: Reads, tape: Sequence[Page], request_bytes: int, pinned: dict[int, int]) -> None:
        """``pinned`` maps page indices to their addresses; adjacent pages of up to ``request_bytes`` are read together."""
        self._reads = reads
        self._tape = tape
        self._request_bytes = request_bytes
        self._slots = Slots(tape, pinned)
        self._largest_expert = max((p.padded_bytes for p in tape if p.spec.kind == "expert"), default=0)
        self._cursor: ReadCursor | None = None
        self.unused_bytes = 0
        # Bytes of experts that were asked for before the routing of their layer.
        self._guessed, self._guess_bytes = 0, 0

    @property
    def clock_s(self) -> float:
        """The time now, in seconds of the clock that reads are timed by."""
        return self._reads.clock()

    @property
    def timeline(self) -> Timeline | None:
        return self._reads.timeline

    @property
    def pinned_count(self) -> int:
        return self._slots.pinned_count

    @property
    def resident(self) -> frozenset[int]:
        """Pages that need not be read: pinned and whole."""
        return self._slots.resident

    def assume_resident(self, indices: Collection[int]) -> None:
        """Take these pinned pages as read: what a repeated sweep finds."""
        self._slots.assume_resident(indices)

    def begin(self, plan: SweepPlan, arena_address: int) -> None:
        """Start reading for one sweep."""
        self._slots.begin(plan.layout, arena_address, self._largest_expert)
        self._guess_bytes = plan.guess_bytes
        self._cursor = ReadCursor(plan.schedule)
        self.unused_bytes = 0
        self._guessed = 0
        self._read_ahead()

    @property
    def prefetch_stats(self) -> PrefetchStats:
        """Of the sweep that runs."""
        return self._running.stats

    @property
    def _running(self) -> ReadCursor:
        if self._cursor is None:
            raise SlotError("no sweep has begun")
        return self._cursor

    def routed(self, layer: int, experts: frozenset[int], pages: Sequence[Page]) -> None:
        """The layer's routing is known: what was asked for ahead of it and nobody needs is withdrawn, or let go once it is
        read; missing pages are asked for.
        """
        self._running.routed(layer, experts)
        pending: list[int] = []
        self._guessed = 0
        for page in pages:
            if page.spec.expert in experts or (slot := self._slots.discard(page)) is None:
                continue
            self.unused_bytes += 0 if slot.pinned else page.padded_bytes
            if slot.state is SlotState.READING:
                pending.append(slot.ticket)
        if pending:
            self._reads.withdraw(pending)
        self._read_ahead()

    def prefetches(self, layer: int) -> bool:
        """Whether it is of use to name some of this layer's experts before its routing is known."""
        return layer in self._running.schedule.prefetch_layers

    def prefetch(self, layer: int, experts: frozenset[int]) -> None:
        """Read ahead the experts that the layer will probably use."""
        self._running.prefetch(layer, experts)
        self._read_ahead()

    @contextmanager
    def page(self, page: Page) -> Iterator[int]:
        """Wait for a page and lend its address until the block ends."""
        with self.run([page]) as (address,):
            yield address

    @contextmanager
    def run(self, pages: Sequence[Page]) -> Iterator[list[int]]:
        """Wait for the first of ``pages`` and lend its address until the block ends.

        Pages behind it that have arrived already are lent with it. They are few, so that reading ahead and cancelling never
        wait for long.
        """
        slots = self._await_run(pages)
        for page, slot in zip(pages, slots, strict=False):
            self._slots.lend(page, slot)
        yield [slot.address for slot in slots]
        for page, slot in zip(pages, slots, strict=False):
            self._slots.give_back(page, slot)
        self._count_ring()
        self._read_ahead()

    def _await_run(self, pages: Sequence[Page]) -> list[Slot]:
        slots, held = [self._await(pages[0])], pages[0].padded_bytes
        for page in pages[1:_LENT_PAGES]:
            slot = self._slots.find(page)
            held += page.padded_bytes
            # Pinned pages hold back no place, but while they are computed nothing is asked for.
            much = 0 < self._slots.ring_bytes < held * _LENT_SHARE
            if slot is None or much or not self._has_arrived(slot):
                break
            slots.append(slot)
        return slots

    def _has_arrived(self, slot: Slot) -> bool:
        """Whether a page is ready; never waits. A failed read is reported when its page is waited for."""
        if slot.state is SlotState.READING and self._reads.is_ready(slot.ticket):
            slot.state = SlotState.READY
        return slot.state is SlotState.READY

    def _count_ring(self) -> None:
        if self.timeline:
            self.timeline.count("ring", self.clock_s, self._slots.ring_used)

    def end(self) -> None:
        """The sweep is over."""
        self._settle_discarded(wait=True)
        self._settle_pinned()
        self._slots.end()
        self._cursor = None

    def abort(self) -> None:
        """Stop reading and forget every page that is not pinned and whole."""
        self._reads.stop()
        self._settle_pinned()
        self._slots.forget_discarded()
        self._cursor = None

    def _settle_pinned(self) -> None:
        """Keep pinned pages that have arrived whole, also those that nobody waited for; forget all others."""
        pinned = self._slots.pinned_slots()
        self._slots.keep([i for i, slot in pinned if slot.state is not SlotState.READING or self._reads.finish(slot.ticket)])

    def _await(self, page: Page) -> Slot:
        begin = self.clock_s
        self._reads.check_cancelled()
        while (slot := self._slots.find(page)) is None:
            # What can hold up a page that is needed now: pages let go while still being read, and prefetched ones that
            # fill the ring and are used later.
            if not (self._settle_discarded(wait=True) and self._read_ahead()) and not self._read_into_spare(page):
                raise SlotError(f"{page.spec}: not in the arena and cannot be read")
        if slot.state is SlotState.READING:
            self._reads.wait(slot.ticket, PAGES_FILE, str(page.spec))
            slot.state = SlotState.READY
            self._reads.stalled(begin, page.spec.kind, str(page.spec))
        return slot

    def _settle_discarded(self, wait: bool) -> bool:
        """Give back the places of pages let go whose reads are over; True if there was one."""
        settled = False
        for slot in self._slots.discarded:
            if wait:
                self._reads.finish(slot.ticket)
            if self._reads.is_over(slot.ticket):
                whole = self._reads.is_ready(slot.ticket)
                if not (whole or slot.pinned):
                    self.unused_bytes -= self._tape[slot.index].padded_bytes
                self._slots.settle(slot, whole)
                self._count_ring()
                settled = True
        return settled

    def _read_ahead(self) -> bool:
        """Ask for pages in reading order for as long as the arena has room; True if any was asked for."""
        cursor = self._running
        self._settle_discarded(wait=False)
        asked = False
        run: list[Reservation] = []
        while (page := cursor.peek()) is not None and (room := self._reserve(page)) is not None:
            if run and not self._extends(run, room):
                self._submit(run)
                run = []
            run.append(room)
            cursor.pop()
            asked = True
        if run:
            self._submit(run)
        return asked

    def _reserve(self, page: Page) -> Reservation | None:
        """Room for a page; guesses leave some of the ring to what is known to be needed, and pinned ones are no more."""
        if not self._running.is_guess(page):
            return self._slots.reserve(page)
        if max(self._slots.ring_used, self._guessed) + page.padded_bytes > self._guess_bytes:
            return None
        room = self._slots.reserve(page)
        self._guessed += page.padded_bytes if room else 0
        return room

    def _read_into_spare(self, page: Page) -> bool:
        cursor = self._running
        if cursor.peek() is not page or (room := self._slots.reserve_spare(page)) is None:
            return False
        cursor.pop()
        self._submit([room])
        return True

    def _extends(self, run: list[Reservation], room: Reservation) -> bool:
        first, last, page = run[0].page, run[-1], room.page
        size = last.page.padded_bytes
        adjacent = page.offset == last.page.offset + size and room.address == last.address + size
        return adjacent and page.offset + page.padded_bytes - first.offset <= self._request_bytes

    def _submit(self, run: list[Reservation]) -> None:
        first, last = run[0], run[-1].page
        ticket = self._reads.native.submit(
            PAGES_FILE,
            first.page.offset,
            first.address,
            last.offset + last.padded_bytes - first.page.offset,
            [(room.page.offset - first.page.offset, room.page.bytes, room.page.checksum, True) for room in run],
        )
        for i, room in enumerate(run):
            self._slots.reading(room, ticket + i)
        self._count_ring()
