"""What a caller holds of requests that were submitted."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from estream.errors import StateError
from estream.scheduler.port import Prepared, Read

R = TypeVar("R", bound=Read)
Stage = Literal["waiting", "sweeping", "done", "cancelled"]


@dataclass(frozen=True)
class Progress:
    """Where requests are, and the ``share`` of their sweep's layers that is done: 0 while waiting, 1 when done."""

    stage: Stage
    share: float


class Ticket(Future[list[R]], Generic[R]):
    """Requests on their way to an answer: a future of one reading for each, which can also be awaited.

    A cancelled one raises ``concurrent.futures.CancelledError`` (``asyncio.CancelledError`` where it is awaited). It may be
    cancelled in the middle of a sweep too. Callbacks run on the thread that sweeps, so they must be short.
    """

    def __init__(
        self, prepared: Prepared, caller: Hashable, deadline: float | None, withdraw: "Callable[[Ticket[R]], None]"
    ) -> None:
        """``deadline`` is a time of the scheduler's clock; ``withdraw`` is told when it is cancelled."""
        super().__init__()
        self.prepared, self.caller, self.deadline = prepared, caller, deadline
        #: The share of its sweep that is done; None before that.
        self.share: float | None = None
        #: Its sweep must hold nobody else.
        self.alone = False
        self._withdraw, self._withdrawn = withdraw, threading.Lock()
        self._pid = os.getpid()

    @property
    def progress(self) -> Progress:
        """Where it is now; costs nothing."""
        if self.cancelled():
            return Progress("cancelled", self.share or 0.0)
        if self.done():
            return Progress("done", 1.0)
        return Progress("waiting", 0.0) if self.share is None else Progress("sweeping", self.share)

    def cancel(self) -> bool:
        """Withdraw the requests; whether that came in time. A sweep that nobody else waits for stops at its next page."""
        self._check_process()
        if not super().cancel():
            return False
        # Once, whoever cancels too.
        if self._withdrawn.acquire(blocking=False):
            self._withdraw(self)
            self.set_running_or_notify_cancel()
        return True

    def running(self) -> bool:
        """Whether a sweep reads the requests now."""
        return self.progress.stage == "sweeping"

    def result(self, timeout: float | None = None) -> list[R]:
        """One reading for each request, as :meth:`Model.read` gives. Raises as that, and TimeoutError after ``timeout``
        seconds; StateError where the scheduler was closed first, or in a forked child.
        """
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What :meth:`result` would raise; None where it would return."""
        self._check_process()
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, None, list[R]]:
        """The same from asyncio; cancelling the task that waits cancels the ticket."""
        self._check_process()
        return asyncio.wrap_future(self).__await__()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StateError("a ticket does not survive a fork; load the model again in the child process")
