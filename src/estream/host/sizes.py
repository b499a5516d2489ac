"""Reading and writing sizes of memory, such as "1.5GiB"."""

import operator
import re
from typing import SupportsIndex

from estream.errors import OptionError

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
#: Sizes lie below it.
LARGEST_SIZE = 1 << 50
_MOST_DIGITS = 40

_UNITS = {
    "": 1,
    "b": 1,
    "k": KiB,
    "kib": KiB,
    "kb": 1000,
    "m": MiB,
    "mib": MiB,
    "mb": 1000**2,
    "g": GiB,
    "gib": GiB,
    "gb": 1000**3,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 1000**4,
}


def parse_bytes(text: str | SupportsIndex) -> int:
    """Parse "1GiB", "600 MiB", "1.5g" or a whole number of bytes.

    Raises:
        OptionError: the text is not a size, or the size is not positive or not below 1 PiB.

    """
    if not isinstance(text, str):
        try:
            size = operator.index(text)
        except TypeError as error:
            raise OptionError(f"{text!r} is not a size: give whole bytes, or text such as '600MiB' or '1.5GiB'") from error
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
        if not match or match[2].lower() not in _UNITS:
            raise OptionError(f"'{_clipped(text)}' is not a size: write a number and a unit, such as 600MiB or 1.5GiB")
        # So many digits are out of range anyway, and a float could not hold them.
        size = int(float(match[1]) * _UNITS[match[2].lower()]) if len(match[1]) <= _MOST_DIGITS else LARGEST_SIZE
    if not 0 < size < LARGEST_SIZE:
        # Python does not write numbers of thousands of digits.
        found = _clipped(text) if isinstance(text, str) else f"{size}" if abs(size) < LARGEST_SIZE else "a number beyond that"
        raise OptionError(f"a size must be positive and below 1 PiB, not '{found}'")
    return size


def _clipped(text: str) -> str:
    return text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}..."


def format_bytes(size: float) -> str:
    """Format a size with three significant digits: "1.23 GiB"."""
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size / unit:.0f} {name}"
    return f"{size:.0f} B"


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``value``."""
    return -(-value // multiple) * multiple
