"""The pager: brings pages into the arena in reading order and lends them to the device.

A page's slot goes free -> reading -> ready -> computing -> free, and every step is checked: a slot is published only
after its bytes have arrived and its checksum is right, and is never written while a computation may read it. Pinned
pages have places of their own and stay ready between sweeps.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from estream import _native
from estream.engine.ring import Place, Ring
from estream.engine.schedule import ReadSchedule
from estream.engine.slots import Slot, SlotError, SlotState
from estream.engine.timeline import STALL, Timeline
from estream.errors import CancelledError, ReadError
from estream.package.manifest import Page

#: How long a wait lasts before Python looks for signals again.
_WAIT_S = 0.1

#: The most pages that are lent together, and the part of the ring that they may hold back from reading ahead.
_RUN_PAGES, _RUN_SHARE = 16, 4

PAGES_FILE = 0
EMBEDDING_FILE = 1


class Pager:
    """Owns the slots of the arena. Not thread-safe: one sweep runs at a time."""

    def __init__(
        self,
        reader: "_native.Reader",
        paths: Sequence[Path],
        tape: Sequence[Page],
        run_bytes: int,
        pinned: dict[int, int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``pinned`` maps page indices to their addresses; ``run_bytes`` is how much adjacent pages are read together;
        ``clock`` gives seconds.
        """
        self.clock = clock
        self._tape = tape
        self._reader = reader
        self._paths = paths
        self._run_bytes = run_bytes
        self._pinned = pinned
        self._slots: dict[int, Slot] = {}
        self._discarded: list[Slot] = []
        self._schedule: ReadSchedule | None = None
        self._ring = Ring(0)
        self._ring_address = 0
        self.stall_s = 0.0
        self.unused_bytes = 0
        self.timeline: Timeline | None = None
        self._cancelled = threading.Event()

    def accept(self) -> None:
        """A request begins; what was cancelled before does not concern it."""
        self._cancelled.clear()

    def cancel(self) -> None:
        """Stop the sweep at its next page; may be called from any thread."""
        self._cancelled.set()

    @property
    def pinned_count(self) -> int:
        return len(self._pinned)

    @property
    def resident(self) -> frozenset[int]:
        """Pages that need not be read: pinned and whole."""
        return frozenset(index for index, slot in self._slots.items() if slot.state is SlotState.READY)

    def assume_resident(self, indices: Collection[int]) -> None:
        """Take these pinned pages as read: what a repeated sweep finds."""
        self._slots |= {i: Slot(self._pinned[i], SlotState.READY, 0, None) for i in indices}

    def unpin_beyond(self, address: int) -> None:
        """Take back the places of pinned pages that do not end at or before ``address``; between sweeps only."""
        for index in [i for i, at in self._pinned.items() if at + self._tape[i].padded_bytes > address]:
            del self._pinned[index]
            self._slots.pop(index, None)

    def begin(self, schedule: ReadSchedule, ring_address: int, ring_bytes: int) -> None:
        """Start reading for one sweep, with the ring at this place of the arena.

        Where experts are predicted, the end of the ring's memory is kept for one missed expert: those that were read in
        its stead may fill the ring, and they are used after it.
        """
        if any(index not in self._pinned for index in self._slots):
            raise SlotError("a sweep begins while pages of the last one are in the ring")
        self._schedule = schedule
        spare = max((p.padded_bytes for p in self._tape if p.spec.kind == "expert"), default=0)
        if schedule.speculative or ring_bytes < spare:
            spare = 0
        self._ring, self._ring_address = Ring(ring_bytes - spare), ring_address
        self._spare_address = ring_address + ring_bytes - spare
        self._spare_free = spare > 0
        self.stall_s, self.unused_bytes = 0.0, 0
        self._read_ahead()

    def routed(self, layer: int, experts: frozenset[int], pages: Sequence[Page]) -> None:
        """The layer's routing is known: pages read ahead for nobody are let go, missing ones are asked for."""
        assert self._schedule is not None
        self._schedule.routed(layer, experts)
        for page in pages:
            if page.spec.expert not in experts and page.index in self._slots and page.index not in self._pinned:
                self._discarded.append(self._slots.pop(page.index))
                self.unused_bytes += page.padded_bytes
        self._read_ahead()

    def predicts(self, layer: int) -> bool:
        return self._schedule is not None and self._schedule.predicts(layer)

    def predict(self, layer: int, experts: frozenset[int]) -> None:
        """Read ahead the experts that the layer will probably use."""
        assert self._schedule is not None
        self._schedule.predict(layer, experts)
        self._read_ahead()

    @contextmanager
    def page(self, page: Page) -> Iterator[int]:
        """Wait for a page and lend its address until the block ends."""
        with self.run([page]) as (address,):
            yield address

    @contextmanager
    def run(self, pages: Sequence[Page]) -> Iterator[list[int]]:
        """Wait for the first of ``pages`` and lend its address until the block ends, together with those of the pages behind
        it that are there already: at most a few, so that neither the ring nor who cancels has to wait for long.
        """
        slots = self._await_run(pages)
        for slot in slots:
            slot.state = SlotState.COMPUTING
        yield [slot.address for slot in slots]
        for page, slot in zip(pages, slots, strict=False):
            if slot.state is not SlotState.COMPUTING:
                raise SlotError(f"{page.spec}: its slot became {slot.state.value} while it was computed")
            slot.state = SlotState.READY
            if page.index not in self._pinned:
                self._free(slot)
                del self._slots[page.index]
        self._read_ahead()

    def _await_run(self, pages: Sequence[Page]) -> list[Slot]:
        slots, held = [self._await(pages[0])], 0 if pages[0].index in self._pinned else pages[0].padded_bytes
        for page in pages[1:_RUN_PAGES]:
            slot = self._slots.get(page.index)
            held += 0 if page.index in self._pinned else page.padded_bytes
            if slot is None or held > self._ring.size // _RUN_SHARE or not self._has_arrived(slot):
                break
            slots.append(slot)
        return slots

    def _has_arrived(self, slot: Slot) -> bool:
        """Whether a page is ready, without waiting; one that failed is not, and is complained of when it is waited for."""
        published = slot.state is SlotState.READING and self._reader.is_published(slot.ticket)
        if published and self._outcome(slot.ticket, 0.0)[0] == "ready":
            slot.state = SlotState.READY
        return slot.state is SlotState.READY

    def _free(self, slot: Slot) -> None:
        if slot.place is not None:
            self._ring.give_back(slot.place)
        else:
            self._spare_free = True
        self._count_arena()

    def _count_arena(self) -> None:
        if self.timeline:
            self.timeline.count("ring", self.clock(), self._ring.used)

    def end(self) -> None:
        """The sweep is over: nothing may be left in the ring."""
        self._settle_discarded(wait=True)
        self._settle_pinned()
        if self._ring.used:
            raise SlotError(f"{self._ring.used} bytes are still in the ring after the sweep")
        self._schedule = None

    def abort(self) -> None:
        """Stop reading and forget every page that is not pinned and whole."""
        self._reader.cancel()
        self._settle_pinned()
        self._discarded.clear()
        self._schedule = None

    def _settle_pinned(self) -> None:
        """Keep pinned pages that have arrived whole, also those that nobody waited for; forget all others."""
        kept = {}
        for index, slot in self._slots.items():
            if index not in self._pinned:
                continue
            while slot.state is SlotState.READING and not self._reader.is_published(slot.ticket):
                self._outcome(slot.ticket, _WAIT_S)
            if slot.state is not SlotState.READING or self._outcome(slot.ticket, 0.0)[0] == "ready":
                slot.state = SlotState.READY
                kept[index] = slot
        self._slots = kept

    def _await(self, page: Page) -> Slot:
        begin = self.clock()
        self._check_cancelled()
        while page.index not in self._slots:
            # What can hold up a page that is needed now: pages let go while still being read, and predicted ones that
            # fill the ring and are used later.
            if not (self._settle_discarded(wait=True) and self._read_ahead()) and not self._read_into_spare(page):
                raise SlotError(f"{page.spec}: not in the arena and cannot be read")
        slot = self._slots[page.index]
        if slot.state is SlotState.READING:
            self.wait(slot.ticket, PAGES_FILE, str(page.spec))
            slot.state = SlotState.READY
            self.stalled(begin, page.spec.kind, str(page.spec))
        if slot.state is not SlotState.READY:
            raise SlotError(f"{page.spec}: taken while {slot.state.value}")
        return slot

    def stalled(self, begin: float, kind: str, what: str) -> None:
        """Computing has waited since ``begin``, a time of this pager's clock."""
        end = self.clock()
        self.stall_s += end - begin
        if self.timeline:
            self.timeline.span(STALL, kind, begin, end, page=what)

    def wait(self, ticket: int, file: int, what: str) -> None:
        """Wait until a read is published.

        Raises:
            ReadError: it failed; the message names file, page and offset.

        """
        while True:
            state, code, offset = self._outcome(ticket, _WAIT_S)
            if state == "ready":
                return
            self._check_cancelled()
            if state != "pending":
                raise ReadError(f"{self._paths[file]}: {what} at offset {offset}: {_explain(state, code)}")

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise CancelledError("the sweep was cancelled")

    def _outcome(self, ticket: int, timeout_s: float) -> tuple[str, int, int]:
        return self._reader.wait(ticket, timeout_s)

    def _settle_discarded(self, wait: bool) -> bool:
        """Give back the places of pages let go whose reads are over; True if there was one."""
        settled = False
        for slot in list(self._discarded):
            while wait and not self._reader.is_published(slot.ticket):
                self._outcome(slot.ticket, _WAIT_S)
            if self._reader.is_published(slot.ticket):
                self._discarded.remove(slot)
                self._free(slot)
                settled = True
        return settled

    def _read_ahead(self) -> bool:
        """Ask for pages in reading order for as long as the arena has room; True if any was asked for."""
        assert self._schedule is not None
        self._settle_discarded(wait=False)
        asked = False
        run: list[tuple[Page, int, Place | None]] = []
        while (page := self._schedule.peek()) is not None:
            place = None
            if page.index in self._pinned:
                address = self._pinned[page.index]
            else:
                place = self._ring.take(page.padded_bytes)
                if place is None:
                    break
                address = self._ring_address + place.offset
            if run and not self._extends(run, page, address):
                self._submit(run)
                run = []
            run.append((page, address, place))
            self._schedule.pop()
            asked = True
        if run:
            self._submit(run)
        return asked

    def _read_into_spare(self, page: Page) -> bool:
        assert self._schedule is not None
        if not self._spare_free or self._schedule.peek() is not page or page.spec.kind != "expert":
            return False
        self._spare_free = False
        self._schedule.pop()
        self._submit([(page, self._spare_address, None)])
        return True

    def _extends(self, run: list[tuple[Page, int, Place | None]], page: Page, address: int) -> bool:
        first, last = run[0], run[-1]
        adjacent = page.offset == last[0].offset + last[0].padded_bytes and address == last[1] + last[0].padded_bytes
        return adjacent and page.offset + page.padded_bytes - first[0].offset <= self._run_bytes

    def _submit(self, run: list[tuple[Page, int, Place | None]]) -> None:
        first_page, first_address, _ = run[0]
        last_page = run[-1][0]
        ticket = self._reader.submit(
            PAGES_FILE,
            first_page.offset,
            first_address,
            last_page.offset + last_page.padded_bytes - first_page.offset,
            [(page.offset - first_page.offset, page.bytes, page.checksum, True) for page, _, _ in run],
        )
        for i, (page, address, place) in enumerate(run):
            if page.index in self._slots:
                raise SlotError(f"{page.spec}: asked for twice")
            self._slots[page.index] = Slot(address, SlotState.READING, ticket + i, place)
        self._count_arena()


def _explain(state: str, code: int) -> str:
    match state:
        case "io":
            return f"the system could not read it ({_native.error_text(code)}); check the disk"
        case "short":
            return "the file ends before the page does; it was truncated or replaced, convert the model again"
        case "checksum":
            return "wrong checksum, the bytes on disk are damaged; convert the model again"
        case _:
            return "the read was cancelled"
