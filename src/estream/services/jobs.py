"""Jobs: requests and what makes an answer of their readings. As many jobs go into a sweep as memory allows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    source, waiting = iter(jobs), list[Job[T]]()
    while True:
        waiting += _taken(reader, source, waiting)
        if not waiting:
            return
        count = _fitting(reader, waiting)
        yield _answers(reader, waiting[:count])
        waiting = waiting[count:]


def _taken(reader: Reader, source: Iterator[Job[T]], waiting: Sequence[Job[T]]) -> list[Job[T]]:
    """Further jobs, twice as many each time, until there are more than one sweep reads."""
    taken: list[Job[T]] = []
    step = max(len(waiting), 8)
    while not (waiting or taken) or reader.fits(_requests([*waiting, *taken])):
        further = [job for _, job in zip(range(step), source, strict=False)]
        taken += further
        if len(further) < step:
            break
        step *= 2
    return taken


def _fitting(reader: Reader, jobs: Sequence[Job[T]]) -> int:
    """How many jobs from the first on one sweep reads: at least one, which may need several sweeps."""
    low, high = 1, len(jobs)
    if reader.fits(_requests(jobs)):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if reader.fits(_requests(jobs[:middle])):
            low = middle
        else:
            high = middle
    return low


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
