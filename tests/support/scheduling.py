"""A model for the scheduler that computes nothing and goes on when a test says so."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from estream.engine.batch import BatchShape
from estream.engine.sweep import Advance
from estream.engine.wanted import Request
from estream.errors import BudgetError, CancelledError, PromptError
from estream.scheduler.port import Prepared
from estream.scheduler.scheduler import Scheduler
from estream.scheduler.ticket import Ticket

#: No test waits longer for what must come.
LONG_S = 120.0
PARTS = 4


@dataclass(frozen=True)
class Times:
    ttft_s: float
    compute_s: float
    read_s: float


def overlapped(tokens_per_s: float, read_s: float) -> Callable[[BatchShape], Times]:
    """Reading hides computing or computing reading, but for a tenth of the smaller."""

    def expect(shape: BatchShape) -> Times:
        compute = shape.tokens / tokens_per_s
        return Times(max(compute, read_s) + min(compute, read_s) / 10, compute, read_s)

    return expect


class Answer(int):
    """A number with figures of its sweep."""

    stats = Times(1.0, 1.0, 1.0)


class FakeModel:
    """Its answer to a request is the sum of the ids. ``sweeps`` holds the prompts' first ids of each sweep.

    A ``stepped`` one waits for :meth:`step` before each part of a sweep; ``errors`` are raised by sweeps to come.
    """

    def __init__(
        self, room: int = 1 << 40, expect: Callable[[BatchShape], Times | None] = lambda shape: None, *, stepped: bool = False
    ) -> None:
        self.sweeps: list[list[int]] = []
        self.errors: list[BaseException | None] = []
        self.cancels = 0
        self.expect, self._room, self._stepped = expect, room, stepped
        self._steps: queue.Queue[str] = queue.Queue()
        self._reached: queue.Queue[int] = queue.Queue()
        self._cancelled = threading.Event()

    def prepare(self, requests: Sequence[Request]) -> Prepared:
        if not all(len(request.prompt) for request in requests):
            raise PromptError("the prompt is empty")
        prepared = prepared_of(*(request.prompt for request in requests))
        if prepared.tokens > self._room:
            raise BudgetError("below the floor", prepared.tokens)
        return prepared

    def room_for(self, requests: Sequence[Request]) -> BatchShape | None:
        shape = BatchShape(tuple(len(request.prompt) for request in requests), len(requests))
        return shape if shape.tokens <= self._room else None

    def read(self, requests: Sequence[Request], advance: Advance, /) -> list[Answer]:
        self._cancelled.clear()
        self.sweeps.append([request.prompt[0] for request in requests])
        try:
            for part in range(PARTS):
                advance(part, PARTS)
                self._reached.put(part)
                if self._stepped:
                    self._steps.get(timeout=LONG_S)
                if self._cancelled.is_set():
                    raise CancelledError("the sweep was cancelled")
            if self.errors and (error := self.errors.pop(0)) is not None:
                raise error
        finally:
            advance(PARTS, PARTS)
        return [Answer(sum(request.prompt)) for request in requests]

    def cancel(self) -> None:
        self.cancels += 1
        self._cancelled.set()
        self._steps.put("cancelled")

    def step(self, parts: int = 1) -> None:
        """Let a sweep go on."""
        for _ in range(parts):
            self._steps.put("go on")

    def wait_for_part(self, part: int) -> None:
        """Until the sweep has come to that part."""
        while self._reached.get(timeout=LONG_S) != part:
            pass


def request(number: int, tokens: int = 1) -> Request:
    """Whose prompt begins with ``number``."""
    return Request([number] + [1] * (tokens - 1))


def prepared_of(*prompts: Sequence[int]) -> Prepared:
    return Prepared(tuple(map(Request, prompts)), sum(map(len, prompts)))


def ticket(number: int, caller: str = "one", deadline: float | None = None, tokens: int = 1) -> Ticket[Answer]:
    """A ticket of no scheduler."""
    return Ticket(prepared_of(request(number, tokens).prompt), caller, deadline, lambda ticket: None)


def numbers(tickets: Sequence[Ticket[Answer]]) -> list[int]:
    return [each.prepared.requests[0].prompt[0] for each in tickets]


@contextmanager
def scheduling(model: FakeModel, **options: int) -> Iterator[Scheduler[Answer]]:
    """Afterwards its thread is gone, also where the test fails in the middle of a sweep."""
    before = set(threading.enumerate())
    scheduler: Scheduler[Answer] = Scheduler(model, **options)
    try:
        yield scheduler
    finally:
        scheduler.close(cancel=True)
        assert set(threading.enumerate()) <= before
