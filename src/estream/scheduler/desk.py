"""What waits and what is swept: the scheduler without its thread and its lock."""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import InvalidStateError
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from estream.errors import NumericError, QueueFullError, StateError
from estream.host.sizes import MiB
from estream.scheduler.pace import Pace
from estream.scheduler.port import Read
from estream.scheduler.queue import FairQueue
from estream.scheduler.ticket import Ticket

R = TypeVar("R", bound=Read)

#: Token ids that may wait: 4 MiB of them.
QUEUED_TOKENS = 1 * MiB


@dataclass
class Sweeping(Generic[R]):
    """A sweep for some tickets, the ``live`` ones of which have not been cancelled.

    It can be cancelled while ``cancellable``; ``stop`` says that it is to be.
    """

    tickets: tuple[Ticket[R], ...]
    began: float
    live: set[Ticket[R]] = field(default_factory=set)
    cancellable: bool = False
    stop: bool = False

    @property
    def must_cancel(self) -> bool:
        return self.stop and self.cancellable


class Desk(Generic[R]):
    """Not locked. No method but :meth:`deliver` and :meth:`fail_all` runs what callers have hung on a ticket."""

    def __init__(self, max_queue: int, clock: Callable[[], float]) -> None:
        """At most ``max_queue`` requests wait; ``clock`` gives seconds."""
        self.queue: FairQueue[R] = FairQueue()
        self.pace = Pace()
        self.sweeping: Sweeping[R] | None = None
        self.closed = False
        self._max_queue, self._clock = max_queue, clock

    def add(self, ticket: Ticket[R]) -> None:
        """The ticket waits.

        Raises:
            QueueFullError: too many wait.
            StateError: the desk is closed.

        """
        if self.closed:
            raise StateError("this scheduler is closed; make another one")
        requests, tokens = len(ticket.prepared.requests), ticket.prepared.tokens
        queue = self.queue
        # What is larger than the whole queue may wait in it alone.
        if len(queue) and (queue.requests + requests > self._max_queue or queue.tokens + tokens > QUEUED_TOKENS):
            wait = self._wait_s()
            raise QueueFullError(
                f"{queue.requests} requests with {queue.tokens} tokens wait, and {requests} with {tokens} more find no room: "
                f"at most {self._max_queue} requests and {QUEUED_TOKENS} tokens may wait; try again in about {wait:.1f} s",
                wait,
            )
        queue.add(ticket)

    def order(self) -> list[Ticket[R]]:
        """Those that wait, as they are to be served."""
        return self.queue.order(self._clock(), self.pace)

    def begin(self, chosen: Sequence[Ticket[R]]) -> Sweeping[R] | None:
        """A sweep for those of the ``chosen`` that still wait; None where none does."""
        now = self._clock()
        # A cancelled one may still be in the queue for a moment.
        tickets = tuple(ticket for ticket in chosen if ticket in self.queue and not ticket.cancelled())
        for ticket in tickets:
            self.queue.serve(ticket, now, self.pace)
            ticket.share = 0.0
        self.sweeping = Sweeping(tickets, now, set(tickets)) if tickets else None
        return self.sweeping

    def advance(self, done: int, parts: int) -> bool:
        """So many parts of the sweep are done; whether it must be cancelled now."""
        sweeping = self.sweeping
        assert sweeping is not None
        sweeping.cancellable = done < parts
        for ticket in sweeping.tickets:
            ticket.share = done / parts
        return sweeping.must_cancel

    def withdraw(self, ticket: Ticket[R]) -> bool:
        """The ticket was cancelled; whether the sweep must be cancelled now."""
        sweeping = self.sweeping
        if ticket in self.queue:
            self.queue.remove(ticket)
        if sweeping is None or ticket not in sweeping.live:
            return False
        sweeping.live.remove(ticket)
        sweeping.stop |= not sweeping.live
        return sweeping.must_cancel

    def end(self, error: BaseException | None) -> list[Ticket[R]]:
        """The sweep is over; returns the tickets that get its readings, or its ``error``."""
        sweeping, self.sweeping = self.sweeping, None
        assert sweeping is not None
        if error is None:
            tokens = sum(ticket.prepared.tokens for ticket in sweeping.tickets)
            self.pace.note(len(sweeping.tickets), tokens, self._clock() - sweeping.began)
        tickets = [ticket for ticket in sweeping.tickets if ticket in sweeping.live]
        if isinstance(error, NumericError) and len(sweeping.tickets) > 1 and not self.closed:
            # Whose numbers they are is not known, so each is read again, alone.
            for ticket in tickets:
                ticket.alone, ticket.share = True, None
                self.queue.add(ticket)
            return []
        return tickets

    def close(self, *, cancel: bool) -> tuple[list[Ticket[R]], bool]:
        """Nothing waits any more: returns what did, and whether the sweep must be cancelled now."""
        self.closed = True
        if cancel and self.sweeping is not None:
            self.sweeping.stop = True
        return self.queue.clear(), self.sweeping is not None and self.sweeping.must_cancel

    def _wait_s(self) -> float:
        ahead = 0 if self.sweeping is None else sum(ticket.prepared.tokens for ticket in self.sweeping.tickets)
        return self.pace.wait_s(ahead + self.queue.tokens)


def deliver(tickets: Sequence[Ticket[R]], swept: Sequence[Ticket[R]], readings: Sequence[R]) -> None:
    """Give each of the ``tickets`` its part of the readings of all ``swept`` ones; one that was just cancelled gets none."""
    wanted, at = set(tickets), 0
    for ticket in swept:
        count = len(ticket.prepared.requests)
        if ticket in wanted:
            try:
                ticket.set_result(list(readings[at : at + count]))
            except InvalidStateError:
                assert ticket.cancelled()
        at += count


def fail_all(tickets: Sequence[Ticket[R]], error: BaseException) -> None:
    """Give each its own copy of an error: those who raise it write into it."""
    for ticket in tickets:
        try:
            ticket.set_exception(copy.copy(error).with_traceback(error.__traceback__))
        except InvalidStateError:
            assert ticket.cancelled()
