"""Reading ahead and writing behind in threads, while the caller computes.

Both keep the order of jobs and bound the memory, so the result does not depend on timing. The caller gets the errors of either
side. The threads end before their block does, also after an exception.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """``workers`` jobs are read at once. ``bytes`` bounds the jobs read ahead, but a single job may be larger."""

    workers: int
    bytes: int


class ReadAhead(Generic[Job, Result]):
    """Yields each job with its result, in order, while threads read the next jobs."""

    def __init__(self, jobs: Iterable[Job], read: Callable[[Job], Result], size: Callable[[Job], int], limits: Limits) -> None:
        self._jobs = iter(jobs)
        self._read = read
        self._size = size
        self._limits = limits
        self._pool = ThreadPoolExecutor(limits.workers, "read-ahead")
        self._waiting: deque[tuple[Job, int, Future[Result]]] = deque()
        self._next: tuple[Job, int] | None = None
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[tuple[Job, Result]]:
        while True:
            self._submit()
            if not self._waiting:
                return
            job, size, future = self._waiting.popleft()
            result = future.result()
            self._bytes -= size
            # Read the next job while the caller computes with this one.
            self._submit()
            del future
            yield job, result
            # Results are large: drop this one before waiting for the next.
            del result

    def _submit(self) -> None:
        while True:
            if self._next is None:
                job = next(self._jobs, None)
                if job is None:
                    return
                self._next = job, self._size(job)
            job, size = self._next
            if self._waiting and (self._bytes + size > self._limits.bytes or len(self._waiting) > self._limits.workers):
                return
            self._waiting.append((job, size, self._pool.submit(self._read, job)))
            self._bytes += size
            self._next = None


class LastResult(Generic[Job, Result]):
    """Caches the result of the last job, so that consecutive calls for the same job read once. Threads may share it."""

    def __init__(self, read: Callable[[Job], Result]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._last: tuple[Job, Result] | None = None

    def __call__(self, job: Job) -> Result:
        with self._lock:
            if self._last is None or self._last[0] != job:
                # Free the old result before reading the new one.
                self._last = None
                self._last = job, self._read(job)
            return self._last[1]


class WriteBehind(Generic[Job, Result]):
    """Calls ``write`` for each job, in order, in one thread. At most ``depth`` jobs wait."""

    def __init__(self, write: Callable[[Job, Result], None], depth: int = 4) -> None:
        self._write = write
        self._queue: queue.Queue[tuple[Job, Result] | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="write-behind", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait until all jobs are written. After an exception in the block, jobs that still wait are dropped."""
        if error is not None:
            self._error = self._error or error
        self._queue.put(None)
        self._thread.join()
        if error is None:
            self._check()

    def put(self, job: Job, result: Result) -> None:
        """Queue a job. Raises the exception of an earlier ``write``, if there was one."""
        self._check()
        self._queue.put((job, result))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._error is None:
                try:
                    self._write(*item)
                except BaseException as error:  # put() or __exit__() raises it
                    self._error = error
