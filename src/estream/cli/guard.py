"""The last guard: whatever ends a command, one line says so, and the exit status tells what kind it was."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from estream.cli import signals
from estream.errors import EstreamError, OptionError

#: Longer messages are cut in the middle: names in a checkpoint may have megabytes.
LONGEST_MESSAGE = 2000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Debug:
    """Whether ``--debug`` was given: errors then bring their traceback."""

    on = False


def run(work: Callable[[], int]) -> None:
    """Run a command. Ends the process where its status is not 0: 1 for failure, 2 for wrong usage, 128 + a signal."""
    Debug.on = False
    try:
        try:
            status = work()
        finally:
            sys.stdout.flush()
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        _stopped(getattr(error, "number", None))
    except BrokenPipeError:
        # Nothing reads our output any more. /dev/null takes the rest, so that the flush at exit does not fail.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except BaseException as error:  # panics of Rust libraries are no Exception
        _failed(error)
    # The parser of options makes a status of 130 of any interrupt.
    if signals.received() is not None or status == 130:
        _stopped(signals.received())
    if status:
        sys.exit(status)


def shown(text: str) -> str:
    """Text for a terminal: control characters, which a stranger's names may hold, are escaped."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def fail(message: str, status: int) -> NoReturn:
    """End with one line on standard error."""
    if len(message) > LONGEST_MESSAGE:
        half = LONGEST_MESSAGE // 2
        message = f"{message[:half]} ... {message[-half:]}"
    with suppress(OSError, ValueError):
        print(f"estream: error: {shown(message)}", file=sys.stderr)
    sys.exit(status)


def _stopped(number: int | None) -> NoReturn:
    number = number or 2
    with suppress(OSError, ValueError):
        print(f"estream: {signals.words(number)}", file=sys.stderr)
    sys.exit(128 + number)


def _failed(error: BaseException) -> NoReturn:
    """Say what failed, and end."""
    if Debug.on:
        import traceback

        with suppress(OSError, ValueError):
            traceback.print_exception(error)
    fail(_message(error), 2 if isinstance(error, OptionError) else 1)


def _message(error: BaseException) -> str:
    if isinstance(error, EstreamError):
        return str(error)
    if isinstance(error, MemoryError):
        return _memory_message(str(error))
    if isinstance(error, RecursionError):
        return (
            "something is nested deeper than estream follows; look for brackets in brackets in the JSON files and the template"
        )
    if isinstance(error, OSError):
        return f"{os.fsdecode(error.filename) if error.filename else 'output'}: {error.strerror or error}"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "the system grants no further thread; raise the limit of processes (ulimit -u, or pids.max of the control group)"
    kind, detail = type(error).__name__, " ".join(str(error).split())
    hint = "" if Debug.on else "; 'estream --debug ...' shows where"
    return f"this is a bug in estream, please report it: {kind}: {detail}{hint}"


def _memory_message(detail: str) -> str:
    """What did not fit where it is known, what there is, and what to do."""
    # Native code and the interpreter itself know nothing of what they asked for.
    what = "" if detail in ("", "std::bad_alloc") else f" ({detail})"
    there = ""
    with suppress(Exception):
        from estream.host.limits import free_bytes
        from estream.host.sizes import format_bytes
        from estream.host.system import address_limit

        limit = address_limit()
        there = f", {format_bytes(free_bytes())} are free" + (
            "" if limit is None else f" and 'ulimit -v' grants {format_bytes(limit)} of addresses"
        )
    return f"out of memory: the next piece does not fit{what}{there}; give a smaller --memory, or grant the process more"
