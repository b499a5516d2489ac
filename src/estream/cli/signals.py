"""What stops a command: an interrupt, SIGTERM and SIGHUP all clean up, say one line and end with 128 + the signal."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_Handler = Callable[[int, FrameType | None], None]

_WORDS = {"SIGINT": "interrupted", "SIGTERM": "stopped by SIGTERM", "SIGHUP": "stopped by SIGHUP"}
#: Signals that follow within so many seconds stop the same: an impatient user must not cut the cleaning up short.
_SAME_S = 5.0


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end. Whatever cleans up at an interrupt cleans up at this."""

    def __init__(self, number: int) -> None:
        super().__init__(words(number))
        self.number = number


class _Last:
    """The signal that stopped this command, and when. The parser of options turns the exception into a bare status."""

    number: int | None = None
    at = 0.0


def words(number: int) -> str:
    """What is said of a signal."""
    return _WORDS.get(signal.Signals(number).name, f"stopped by signal {number}")


def received() -> int | None:
    """The signal that stopped this command, if one did."""
    return _Last.number


@contextmanager
def ending_at_once() -> Iterator[None]:
    """End at a signal without cleaning up, since there is nothing to clean. Imports may swallow exceptions."""
    _Last.number = None
    with _handled_by(_end):
        yield


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Raise Stopped at a signal."""
    with _handled_by(_stop):
        yield


def _end(number: int, _: FrameType | None) -> None:
    try:
        os.write(2, f"estream: {words(number)}\n".encode())
    finally:
        os._exit(128 + number)


def _stop(number: int, _: FrameType | None) -> None:
    now = time.monotonic()
    if _Last.number is not None and now - _Last.at < _SAME_S:
        return
    _Last.number, _Last.at = number, now
    raise Stopped(number)


@contextmanager
def _handled_by(handler: _Handler) -> Iterator[None]:
    """Handle the signals, except those that the caller had ignored, as ``nohup`` does."""
    before = {}
    for name in _WORDS:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is None or (known := signal.getsignal(number)) in (signal.SIG_IGN, None):
            continue
        try:
            signal.signal(number, handler)
        except ValueError:  # another thread than the main one runs no handlers
            continue
        before[number] = known
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
