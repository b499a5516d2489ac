"""How many of the waiting tickets go into one sweep: as long as a longer one costs nothing, or serves all of them sooner."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

from estream.engine.batch import BatchShape
from estream.engine.head import HeadShape
from estream.engine.wanted import Request
from estream.scheduler.port import Read, Reader, Times
from estream.scheduler.ticket import Ticket

R = TypeVar("R", bound=Read)

#: A sweep may take this much longer than its reading and be as good as free.
FREE = 1.03
#: A sweep that takes this much longer than its computing gains from more tokens.
GAINING = 1.05
#: Estimates that are remembered.
_KEPT = 512


class Filler(Generic[R]):
    """Fills sweeps. It remembers how many tickets the last one took: looking begins there."""

    def __init__(self, reader: Reader[R], plain_tokens: int) -> None:
        """Where nothing is expected of sweeps, one takes ``plain_tokens`` tokens, or one ticket."""
        self._reader, self._plain_tokens = reader, plain_tokens
        self._last, self._proven_tokens = 8, 0
        self._expect = lru_cache(_KEPT)(reader.expect)

    def fill(self, order: Sequence[Ticket[R]], now: float) -> list[Ticket[R]]:
        """The longest good beginning of the ``order``, to one part in sixteen; at least its first ticket."""
        if order[0].alone:
            return [order[0]]
        together = next((i for i, ticket in enumerate(order) if ticket.alone), len(order))
        count = longest(together, lambda n: self._good(order[:n], now), 2 * self._last)
        self._last = count
        return list(order[:count])

    def note(self, requests: Sequence[Request], times: Times) -> None:
        """A sweep was as it was. One that waited for reads, whatever was expected, may be followed by one twice as long."""
        tokens = sum(len(request.prompt) for request in requests)
        if times.ttft_s > GAINING * times.compute_s:
            self._proven_tokens = max(self._proven_tokens, 2 * tokens)
        elif tokens <= self._proven_tokens:
            self._proven_tokens = tokens

    def _good(self, tickets: Sequence[Ticket[R]], now: float) -> bool:
        """Whether these may share a sweep: they have room, the last of them is worth it, and nobody is late by it."""
        requests = [request for ticket in tickets for request in ticket.prepared.requests]
        shape = self._reader.room_for(requests)
        if shape is None:
            return False
        expected = self._expect(coarse(shape))
        if expected is None:
            return shape.tokens <= self._plain_tokens or len(tickets) == 1
        if expected.ttft_s <= FREE * expected.read_s:
            return True
        gains = shape.tokens <= self._proven_tokens or self._was_gaining(tickets, shape, expected)
        return gains and not self._is_late(tickets, now, expected)

    def _was_gaining(self, tickets: Sequence[Ticket[R]], shape: BatchShape, expected: Times) -> bool:
        """Whether the sweep was still waiting for reads before the last ticket came."""
        if expected.ttft_s > GAINING * expected.compute_s:
            return True
        before = self._reader.room_for([request for ticket in tickets[:-1] for request in ticket.prepared.requests])
        if before is None or coarse(before) == coarse(shape):
            return False
        earlier = self._expect(coarse(before))
        return earlier is not None and earlier.ttft_s > GAINING * earlier.compute_s

    def _is_late(self, tickets: Sequence[Ticket[R]], now: float, expected: Times) -> bool:
        """Whether the sweep ends after a deadline that its first ticket alone would let it keep."""
        deadlines = [t.deadline for t in tickets if t.deadline is not None and t.deadline < now + expected.ttft_s]
        if not deadlines:
            return False
        shape = self._reader.room_for(tickets[0].prepared.requests)
        alone = None if shape is None else self._expect(coarse(shape))
        return alone is not None and any(now + alone.ttft_s <= deadline for deadline in deadlines)


def longest(count: int, good: Callable[[int], bool], guess: int) -> int:
    """The largest of 1 to ``count`` that is ``good``, to one part in sixteen, where a smaller one of a good one is good. One is
    taken for good.
    """
    low, high, guess = 1, count + 1, min(guess, count)
    while high - low > max(1, low // 16):
        if guess <= low:
            guess = (low + high) // 2
        if good(guess):
            low, guess = guess, min(2 * guess, (guess + high) // 2 if high <= count else count)
        else:
            high, guess = guess, (low + guess) // 2
    return low


def coarse(shape: BatchShape) -> BatchShape:
    """A shape that stands for many: sizes rounded down, sequences of one length, and the head as a whole or not at all."""
    sequences = _rounded(len(shape.lengths))
    each = max(1, _rounded(shape.tokens) // sequences)
    head = shape.head
    return BatchShape(
        (each,) * sequences,
        min(_rounded(shape.wanted), each * sequences),
        HeadShape(
            rows=_rounded(head.rows),
            totals=_rounded(head.totals),
            logits=_rounded(head.logits),
            likeliest=_rounded(head.likeliest),
            picked=_rounded(head.picked),
            hidden=_rounded(head.hidden),
            means=_rounded(head.means),
            ids=None if head.rows else frozenset(),
        ),
    )


def _rounded(number: int) -> int:
    """Down to four binary digits."""
    unit = 1 << max(0, number.bit_length() - 4)
    return number // unit * unit
