"""Numbers and sizes among the options: each has a range, and an error names the option."""

import re
from typing import Annotated

import typer

from estream.errors import EstreamError, OptionError
from estream.host.sizes import parse_bytes

#: More threads, lanes or repetitions than anyone has a use for; beyond it, a number is a slip.
MOST_THREADS = 1024
MOST_LANES = 64
MOST_REPETITIONS = 1_000_000
MOST_TOKENS = 1 << 40
#: No vocabulary is larger.
MOST_TOP = 1 << 24
LARGEST_SEED = (1 << 64) - 1

_SHOWN = 40
#: Twenty digits of bytes are a hundred thousand PiB.
_BEYOND_ALL = re.compile(r"\s*[1-9]\d{19,}(?:\.\d+)?\s*[a-zA-Z]*\s*")

Memory = Annotated[str | None, typer.Option("--memory", help="Budget of the whole process, such as 1GiB.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, max=MOST_THREADS, help="Compute threads.")]
Activations = Annotated[str, typer.Option("--activations", help="int8 (fast) or float.")]


def size_of(option: str, text: str | None) -> int | None:
    """The bytes that an option gives; None where it is not given.

    Raises:
        OptionError: it is not a size, or out of range.

    """
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from error


def memory_of(text: str | None) -> int | None:
    """The budget that ``--memory`` gives; None where it is not given.

    Raises:
        OptionError: it is not a size, or out of range.
        EstreamError: it is a size that no machine has. That is a failure as a budget below the floor is, not wrong usage.

    """
    if text is not None and _BEYOND_ALL.fullmatch(text):
        raise EstreamError(f"--memory: a size must be below 1 PiB, not '{clipped(text)}'")
    return size_of("--memory", text)


def lengths_of(option: str, text: str) -> list[int]:
    """Prompt lengths, separated by commas.

    Raises:
        OptionError: one is not a whole number above 0, or is larger than any context.

    """
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < len(str(MOST_TOKENS))]
    if len(numbers) != len(parts) or min(numbers) < 1:
        raise OptionError(f"{option} must be whole numbers above 0 such as 256,512, separated by commas, not '{clipped(text)}'")
    return numbers


def clipped(text: str) -> str:
    """The start of a text that may be long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
