"""A pager over a reader that does at once, or not at all, what it is asked for."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from simulated_machines import CONFIG, OLMOE

from estream.configurator.simulated import SizeAlone
from estream.engine.batch import BatchShape
from estream.engine.memory import SweepLayout, smallest_ring
from estream.engine.pager import Pager
from estream.engine.reads import Reads
from estream.engine.schedule import plan_reading
from estream.engine.sweep_plan import SweepPlan
from estream.engine.use import ExpectedUse
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
    withdrawn: list[int] = field(default_factory=list)

    def submit(self, file: int, offset: int, address: int, length: int, pages: Sequence[tuple[int, int, int, bool]]) -> int:
        self.asked.append((offset, length))
        self.tickets += len(pages)
        return self.tickets - len(pages)

    def wait(self, ticket: int, timeout_s: float) -> tuple[str, int, int]:
        return self.outcomes.get(ticket, ("ready", 0, 0))

    def is_published(self, ticket: int) -> bool:
        return self.wait(ticket, 0.0)[0] != "pending"

    def withdraw(self, tickets: Sequence[int]) -> int:
        self.withdrawn += tickets
        return 0

    def cancel(self) -> None:
        self.cancelled += 1
        self.outcomes |= {t: ("cancelled", 0, 0) for t, (state, *_) in self.outcomes.items() if state == "pending"}


def make_pager(reader: FakeReader, pinned: Collection[Page] = ()) -> Pager:
    places = {page.index: PINNED_ADDRESS + page.offset for page in pinned}
    return Pager(Reads(reader, [Path("pages.bin")]), TAPE, 1 << 21, places)


def begin(pager: Pager, resident: Collection[int] | None = None, spare: int = 0) -> None:
    """Begin a sweep in a ring of the smallest size and ``spare`` more, where experts are read when they are routed to."""
    read = frozenset(pager.resident if resident is None else resident)
    ring = smallest_ring(TAPE) + spare
    schedule = plan_reading(CONFIG, TAPE, read, ExpectedUse(np.zeros((CONFIG.layers, CONFIG.moe.experts))), 2.0, 0)
    plan = SweepPlan(BatchShape.of_prompt(1), SizeAlone(0), SweepLayout(0, ring, ring, ring), read, schedule, ring)
    pager.begin(plan, RING_ADDRESS)
