"""What the render of a chat template takes, in steps, time, and bytes of what is made; each operation that makes much of little
is measured before it runs.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import TemplateError

#: Rounds of loops and calls in one render.
MOST_STEPS = 200_000
#: Processor seconds of one render.
MOST_SECONDS = 1.0
#: Bytes of everything that one render makes, what it gives up again included.
MOST_BYTES = 128 << 20
#: What a value counts beside its characters: about what Python takes for it, and what looking at it costs.
_VALUE = 48
_LONGEST_PAD = 65_536
#: From so many characters or values on, work on a value takes long enough to look at the clock before it.
_LONG = 1 << 16


class BoundError(TemplateError):
    """The template takes more than one render may."""


class _Meter(threading.local):
    """What the render of this thread has taken so far."""

    def begin(self) -> None:
        self.steps, self.bytes, self.end = 0, 0, time.thread_time() + MOST_SECONDS

    def __init__(self) -> None:
        self.begin()

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise BoundError(f"it takes more than {MOST_STEPS:,} steps")
        if self.steps % 64 == 0:
            self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        if time.thread_time() > self.end:
            raise BoundError(f"it takes more than {MOST_SECONDS:.0f} s")

    def look(self, size: int) -> None:
        """Look at the clock before an operation that makes nothing of a value of so many characters or values."""
        if size > _LONG:
            self._look_at_the_clock()

    def take(self, size: int) -> None:
        self.bytes += size
        self.look(size)
        if self.bytes > MOST_BYTES:
            raise BoundError(f"it makes more than {MOST_BYTES >> 20} MiB of text")


meter = _Meter()


def text_size(characters: int, *texts: Any) -> int:
    """The bytes of a text of so many characters that is made of these: one wide character makes all others as wide."""
    return characters if all(text.isascii() for text in texts if isinstance(text, str)) else 4 * characters


def size_of(value: Any) -> int:
    """About the bytes of a value as text; counting ends where there are too many."""
    size, characters, wide, waiting = 0, 0, False, [value]
    while waiting and size + characters <= MOST_BYTES:
        each = waiting.pop()
        size += _VALUE
        if isinstance(each, str | bytes):
            characters += len(each)
            wide = wide or not each.isascii()
        elif isinstance(each, int):
            size += each.bit_length() // 3
        elif isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list | tuple | set):
            waiting += each
    return size + characters * (4 if wide else 1)


def counted(values: Iterable[Any]) -> Iterator[Any]:
    """The rounds of a loop, each a step."""
    for value in values:
        meter.step()
        yield value


def listed(values: Any) -> list[Any]:
    """A list of what a value holds; each character of a text becomes a value of its own."""
    if isinstance(values, list | tuple):
        meter.take(8 * len(values))
        return list(values)
    counted_before = hasattr(values, "__len__")
    if counted_before:
        meter.take(64 * len(values))
    made = list(values)
    if not counted_before:
        meter.take(8 * len(made))
    return made


def sliced(value: Any) -> Any:
    """A slice, measured when it is there: it is no longer than what it was cut from."""
    if isinstance(value, str | list | tuple):
        meter.take(text_size(len(value), value) if isinstance(value, str) else 8 * len(value))
    return value


def looked(value: Any) -> Any:
    """A value that is about to be compared or searched."""
    if isinstance(value, str):
        meter.look(len(value))
    elif isinstance(value, list | tuple | dict):
        meter.look(_VALUE * len(value))
    return value


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        meter.take(text_size(len(left) + len(right), left, right))
    elif isinstance(left, str | list | tuple):
        meter.take(size_of([left, right]))


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int):
            meter.take(size_of(value) * max(0, times) if isinstance(value, str | list | tuple) else size_of(value))


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        meter.take(left.bit_length() * abs(right))


def _check_format(left: Any, right: Any) -> None:
    if isinstance(left, str):
        if "*" in left or any(int(width) > _LONGEST_PAD for width in re.findall(r"\d{1,18}", left)):
            raise BoundError("it pads a text by a large number")
        padded = _LONGEST_PAD * bool(re.search(r"\d", left))
        meter.take(4 * len(left) + left.count("%") * (size_of([left[:64], right]) + padded))


#: And what these operators make.
BINARY: dict[str, Callable[[Any, Any], None]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_format,
}


def check_replace(text: str, old: str, new: str, count: int = -1) -> None:
    """Measure what replacing makes."""
    times = text.count(old) if count < 0 else min(count, text.count(old))
    meter.take(text_size(len(text) + times * len(new), text, new))


def check_join(text: str, values: list[Any]) -> None:
    """Measure what joining makes."""
    meter.take(size_of([*values, text]) + text_size(len(text) * len(values), text, *values))


def _check_split(text: str, separator: str | None = None, maxsplit: int = -1) -> None:
    parts = len(text) // 2 if separator is None else text.count(separator)
    meter.take(text_size(len(text), text) + 64 * (parts if maxsplit < 0 else min(parts, maxsplit)))


def _check_lines(text: str, keepends: bool = False) -> None:
    del keepends
    _check_split(text, "\n")


def _check_width(text: str, width: int, *fill: str) -> None:
    meter.take(text_size(int(width), text, *fill))


def check_copy(text: str, *_: Any) -> None:
    """Measure a text that is made of another one, character by character."""
    meter.take(text_size(len(text), text))


def check_search(text: str, *_: Any, **__: Any) -> None:
    """Look at the clock before a text is searched."""
    meter.look(len(text))


#: What strings' methods make is measured by these.
METHODS: dict[str, Callable[..., None]] = dict[str, Callable[..., None]]({
    "replace": check_replace,
    "join": check_join,
    "split": _check_split,
    "rsplit": _check_split,
    "splitlines": _check_lines,
    "center": _check_width,
    "ljust": _check_width,
    "rjust": _check_width,
    "zfill": _check_width,
    "expandtabs": lambda text, size=8: meter.take(text_size(len(text) * int(size), text)),
}) | dict.fromkeys(
    [
        "lower", "upper", "title", "capitalize", "casefold", "swapcase", "strip", "lstrip", "rstrip", "removeprefix",
        "removesuffix", "partition", "rpartition", "encode", "translate",
    ],
    check_copy,
)  # fmt: skip
