"""Calls into the tokenizers library, whose panics are no ``Exception`` and write to standard error."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from estream.errors import EstreamError

_STDERR = 2
_LOCK = threading.Lock()


class TokenizerError(Exception):
    """The library failed; the message is its own, in one line."""


@contextmanager
def failures(*, hide_panics: bool = False) -> Iterator[None]:
    """Turn what the library raises into TokenizerError. Interrupts and exits go on.

    ``hide_panics`` keeps their text off standard error, for the whole process as long as the block runs.
    """
    try:
        if hide_panics:
            with _nothing_on_stderr():
                yield
        else:
            yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, EstreamError):
        raise
    except BaseException as error:
        raise TokenizerError(" ".join(str(error).split())[:300] or type(error).__name__) from error


@contextmanager
def _nothing_on_stderr() -> Iterator[None]:
    with _LOCK:
        try:
            kept = os.dup(_STDERR)
        except OSError:  # closed
            yield
            return
        try:
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), _STDERR)
            yield
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
