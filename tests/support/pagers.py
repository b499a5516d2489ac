"""A pager over a reader that does at once, or not at all, what it is asked for."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simulated_machines import CONFIG, OLMOE

from estream.engine.memory import smallest_ring
from estream.engine.pager import Pager
from estream.engine.schedule import ReadSchedule
from estream.package.manifest import Page

TAPE = OLMOE.tape
#: What a sweep computes with before it knows any routing.
ATTENTION, ROUTER = TAPE[0], TAPE[1]
RING_ADDRESS = 1 << 40
PINNED_ADDRESS = 1 << 30


@dataclass
class FakeReader:
    """Tickets count from 0. What is in ``outcomes`` ends so, everything else is ready at once; ``pending`` never ends."""

    asked: list[tuple[int, int]] = field(default_factory=list)
    outcomes: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    tickets: int = 0
    cancelled: int = 0

    def submit(self, file: int, offset: int, address: int, length: int, pages: Sequence[tuple[int, int, int, bool]]) -> int:
        self.asked.append((offset, length))
        self.tickets += len(pages)
        return self.tickets - len(pages)

    def wait(self, ticket: int, timeout_s: float) -> tuple[str, int, int]:
        return self.outcomes.get(ticket, ("ready", 0, 0))

    def is_published(self, ticket: int) -> bool:
        return self.wait(ticket, 0.0)[0] != "pending"

    def cancel(self) -> None:
        self.cancelled += 1
        self.outcomes |= {t: ("cancelled", 0, 0) for t, (state, *_) in self.outcomes.items() if state == "pending"}


def make_pager(reader: FakeReader, pinned: Collection[Page] = ()) -> Pager:
    places = {page.index: PINNED_ADDRESS + page.offset for page in pinned}
    return Pager(reader, [Path("pages.bin")], TAPE, 1 << 21, places)


def begin(pager: Pager, resident: Collection[int] | None = None, spare: int = 0) -> None:
    """Begin a sweep in a ring of the smallest size and ``spare`` more, where experts are read when they are routed to."""
    schedule = ReadSchedule(CONFIG, TAPE, pager.resident if resident is None else resident, False, 0)
    pager.begin(schedule, RING_ADDRESS, smallest_ring(TAPE) + spare)
