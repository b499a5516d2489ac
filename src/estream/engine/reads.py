"""Reads as a sweep uses them: asked of the lanes, waited for, counted, cancelled."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from estream import _native
from estream.engine.timeline import STALL, Timeline
from estream.errors import CancelledError, ReadError

#: How long a wait lasts before Python looks for signals again.
_WAIT_S = 0.1

PAGES_FILE = 0
EMBEDDING_FILE = 1


class Reads:
    """The native reader of one model. ``stall_s`` is the time in seconds that computing has waited for it so far."""

    def __init__(self, reader: "_native.Reader", paths: Sequence[Path], clock: Callable[[], float] = time.perf_counter) -> None:
        """``paths`` are the reader's files, for messages; ``clock`` gives seconds."""
        self.native = reader
        self.clock = clock
        self.stall_s = 0.0
        self.timeline: Timeline | None = None
        self._paths = paths
        self._cancelled = threading.Event()

    def accept(self) -> None:
        """A request begins; what was cancelled before does not concern it."""
        self._cancelled.clear()

    def cancel(self) -> None:
        """Stop the sweep at its next page; may be called from any thread."""
        self._cancelled.set()

    def check_cancelled(self) -> None:
        """Raises CancelledError."""
        if self._cancelled.is_set():
            raise CancelledError("the sweep was cancelled")

    def withdraw(self, tickets: Sequence[int]) -> None:
        """Drop reads that have not begun and that serve these pages alone."""
        self.native.withdraw(tickets)

    def stop(self) -> None:
        """Drop all requests; those that have begun end first."""
        self.native.cancel()

    def is_over(self, ticket: int) -> bool:
        """Whether a read has ended, well or badly."""
        return self.native.is_published(ticket)

    def is_ready(self, ticket: int) -> bool:
        """Whether a read has ended well; never waits."""
        return self.is_over(ticket) and self.native.wait(ticket, 0.0)[0] == "ready"

    def finish(self, ticket: int) -> bool:
        """Wait until a read is over, also while the sweep is being cancelled; whether it ended well."""
        while not self.is_over(ticket):
            self.native.wait(ticket, _WAIT_S)
        return self.is_ready(ticket)

    def wait(self, ticket: int, file: int, what: str) -> None:
        """Wait until a read has ended well.

        Raises:
            ReadError: it failed; the message names file, page and offset.
            CancelledError: the sweep was cancelled.

        """
        while True:
            state, code, offset = self.native.wait(ticket, _WAIT_S)
            if state == "ready":
                return
            self.check_cancelled()
            if state != "pending":
                raise ReadError(f"{self._paths[file]}: {what} at offset {offset}: {_explain(state, code)}")

    def stalled(self, begin: float, kind: str, what: str) -> None:
        """Computing has waited since ``begin``, a time of this clock."""
        end = self.clock()
        self.stall_s += end - begin
        if self.timeline:
            self.timeline.span(STALL, kind, begin, end, page=what)


def _explain(state: str, code: int) -> str:
    match state:
        case "io":
            return f"the system could not read it ({_native.error_text(code)}); check the disk"
        case "short":
            return "the file ends before the page does; it was truncated or replaced, convert the model again"
        case "checksum":
            return "wrong checksum, the bytes on disk are damaged; convert the model again"
        case _:
            return "the read was cancelled"
