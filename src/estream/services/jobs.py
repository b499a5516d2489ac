"""Jobs: requests and what makes an answer of their readings. As many jobs go into a sweep as memory allows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from estream.engine.wanted import Request
from estream.services.port import Read, Reader

T = TypeVar("T")


@dataclass(frozen=True)
class Job(Generic[T]):
    """Requests that belong to one answer, and how their readings, in that order, become it."""

    requests: tuple[Request, ...]
    finish: Callable[[Sequence[Read]], T]

    @property
    def tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)


def answer(reader: Reader, jobs: Sequence[Job[T]]) -> list[T]:
    """The answers in the jobs' order. The longest are read first: what does not fit is said before anything is done."""
    order = sorted(range(len(jobs)), key=lambda i: (-jobs[i].tokens, i))
    found: dict[int, T] = {}
    for answers in answer_in_order(reader, (jobs[i] for i in order)):
        found.update(zip(order[len(found) : len(found) + len(answers)], answers, strict=True))
    return [found[i] for i in range(len(jobs))]


def answer_in_order(reader: Reader, jobs: Iterable[Job[T]]) -> Iterator[list[T]]:
    """Answers in the jobs' own order, after each sweep those that are complete; jobs are taken when they are needed."""
    queue = _Queue(reader, iter(jobs))
    while taken := queue.take():
        yield _answers(reader, taken)


class _Queue(Generic[T]):
    """Jobs that wait. Sweeps hold about as many as those before, which is where looking begins."""

    def __init__(self, reader: Reader, source: Iterator[Job[T]]) -> None:
        self._reader, self._source = reader, source
        self._waiting: list[Job[T]] = []
        self._last = 8

    def take(self) -> list[Job[T]]:
        """As many as one sweep reads; one that needs several sweeps alone; none at the end."""
        low, high = 0, min(self._last, self._filled(self._last))
        while high > low and self._fits(high):
            low, high = high, min(2 * high, self._filled(2 * high))
        low = max(low, min(1, high))
        # A sweep that is nearly full is full.
        while high - low > max(1, low // 16):
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(middle) else (low, middle)
        taken, self._waiting = self._waiting[:low], self._waiting[low:]
        self._last = max(len(taken), 1)
        return taken

    def _filled(self, count: int) -> int:
        """How many jobs wait, once there are so many if that can be."""
        self._waiting += islice(self._source, max(count - len(self._waiting), 0))
        return len(self._waiting)

    def _fits(self, count: int) -> bool:
        return self._reader.fits(_requests(self._waiting[:count]))


def _answers(reader: Reader, jobs: Sequence[Job[T]]) -> list[T]:
    requests = _requests(jobs)
    readings: list[Read] = []
    if len(jobs) > 1 or reader.fits(requests):
        readings += reader.read(requests)
    else:
        # One job alone that is larger than a sweep.
        at = 0
        while at < len(requests):
            count = next((n for n in range(len(requests) - at, 1, -1) if reader.fits(requests[at : at + n])), 1)
            readings += reader.read(requests[at : at + count])
            at += count
    answers, at = [], 0
    for job in jobs:
        answers.append(job.finish(readings[at : at + len(job.requests)]))
        at += len(job.requests)
    return answers


def _requests(jobs: Sequence[Job[T]]) -> list[Request]:
    return [request for job in jobs for request in job.requests]
