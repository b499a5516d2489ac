"""Tickets that wait, and the order in which they are served: urgent ones and fair turns by turns."""

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from estream.scheduler.pace import Pace
from estream.scheduler.port import Read
from estream.scheduler.ticket import Ticket

R = TypeVar("R", bound=Read)


class FairQueue(Generic[R]):
    """Not locked. A caller's own tickets keep their order; of the callers the one that was given the fewest tokens goes next.

    ``tokens`` and ``requests`` count those that wait.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, dict[Ticket[R], int]] = {}  # with the order of their coming
        self._given: dict[Hashable, int] = {}
        self._turn = 0  # what the caller that went last had been given; who comes anew begins there
        self._came = 0
        self._urgent_first = True
        self.tokens = self.requests = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __contains__(self, ticket: Ticket[R]) -> bool:
        return ticket in self._waiting.get(ticket.caller, ())

    def add(self, ticket: Ticket[R]) -> None:
        """The ticket comes."""
        if ticket.caller not in self._waiting:
            self._given[ticket.caller] = max(self._given.get(ticket.caller, 0), self._turn)
        self._waiting.setdefault(ticket.caller, {})[ticket] = self._came
        self._came += 1
        self._count(ticket, 1)

    def remove(self, ticket: Ticket[R]) -> None:
        """The ticket goes unserved."""
        own = self._waiting[ticket.caller]
        del own[ticket]
        self._count(ticket, -1)
        if not own:
            del self._waiting[ticket.caller]
        if not self._waiting:
            self._given.clear()
            self._turn = 0

    def serve(self, ticket: Ticket[R], now: float, pace: Pace) -> None:
        """The ticket goes into a sweep."""
        caller = ticket.caller
        self._urgent_first = not self._is_urgent(ticket, now, pace)
        self._turn = max(self._turn, self._given[caller])
        self._given[caller] += ticket.prepared.tokens
        self.remove(ticket)
        # Those who wait for nothing are forgotten once the others have caught up.
        if len(self._given) > 2 * len(self._waiting) + 16:
            self._given = {c: n for c, n in self._given.items() if c in self._waiting or n > self._turn}

    def clear(self) -> list[Ticket[R]]:
        """All that wait; none does any more."""
        left = list(self)
        for ticket in left:
            self.remove(ticket)
        return left

    def __iter__(self) -> Iterator[Ticket[R]]:
        return (ticket for own in self._waiting.values() for ticket in own)

    def order(self, now: float, pace: Pace) -> list[Ticket[R]]:
        """All that wait, those to be served first at the beginning. Places go by turns to the urgent, by their deadlines, and
        to the fairly chosen, so neither keeps the other away.
        """
        urgent = iter(sorted((t for t in self if self._is_urgent(t, now, pace)), key=lambda t: t.deadline or 0.0))
        turns = [urgent, self._fair()] if self._urgent_first else [self._fair(), urgent]
        found: dict[Ticket[R], None] = {}
        while turns:
            source = turns.pop(0)
            ticket = next((t for t in source if t not in found), None)
            if ticket is not None:
                found[ticket] = None
                turns.append(source)
        return list(found)

    def _fair(self) -> Iterator[Ticket[R]]:
        """All, as if each were served in its turn."""
        sources = {caller: iter(own.items()) for caller, own in self._waiting.items()}
        heap: list[tuple[int, int, Ticket[R]]] = []
        for caller, source in sources.items():
            ticket, came = next(source)
            heap.append((self._given[caller], came, ticket))
        heapq.heapify(heap)
        while heap:
            given, _, ticket = heap[0]
            yield ticket
            following = next(sources[ticket.caller], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (given + ticket.prepared.tokens, following[1], following[0]))

    def _is_urgent(self, ticket: Ticket[R], now: float, pace: Pace) -> bool:
        """It can be in time, and would not be after one sweep more."""
        if ticket.deadline is None:
            return False
        return now + pace.shortest_s <= ticket.deadline < now + 2 * pace.usual_s

    def _count(self, ticket: Ticket[R], sign: int) -> None:
        self.tokens += sign * ticket.prepared.tokens
        self.requests += sign * len(ticket.prepared.requests)
