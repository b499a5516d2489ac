"""Output of the command line: results go to standard output, progress and errors to standard error."""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from estream.cli.guard import shown
from estream.conversion.convert import Progress as ProgressCallback
from estream.host.doing import Doing

# Without markup, so that brackets in paths and tokens are printed.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)
if not out.is_terminal:
    # Other programs read this, so lines are not wrapped.
    out.width = 1000

#: The least width of a column whose words are wrapped.
_TEXT_WIDTH = 30


def say(text: str) -> None:
    """Print lines to standard output; only the terminal wraps them."""
    for line in text.split("\n"):
        out.print(shown(line), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document to standard output. It is ASCII: bytes of paths that are not UTF-8 are lone surrogates in it."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_pairs(title: str, rows: dict[str, str]) -> None:
    """Print a table of names and values."""
    table = Table(title=shown(title), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    # Fold, since a truncated path or name is of no use.
    table.add_column(style="dim", overflow="fold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(shown(name), shown(value))
    out.print(table)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = (), text: str = "") -> None:
    """Print rows under a head. Where the terminal is too narrow for that, each row becomes pairs, since nothing is cut.

    Args:
        columns: the head; numbers, which are aligned to the right, except those named by ``left``.
        rows: as many values each.
        left: columns of words.
        text: the column whose words may be wrapped.

    """
    cells = [[shown(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    needed = sum(min(w, _TEXT_WIDTH) if name == text else w for name, w in zip(columns, widths, strict=True)) + 2 * len(columns)
    if needed > out.width:
        for number, row in enumerate(cells):
            if number:
                out.print()
            print_pairs("", dict(zip(columns, row, strict=True)))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in columns:
        wraps = name == text
        table.add_column(
            name,
            justify="left" if name in left or wraps else "right",
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
        )
    for row in cells:
        table.add_row(*row)
    out.print(table)


@contextmanager
def progress(description: str) -> Iterator[ProgressCallback | None]:
    """Show a progress bar in bytes; yields its callback, or None if standard error is not a terminal."""
    if not err.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Seconds(ProgressColumn):
    """What is done, and its seconds so far: ``measuring this machine for PKG, once: 3 of 8 s``."""

    def render(self, task: Task) -> Text:
        now = int(task.elapsed or 0)
        of = "" if task.total is None or now > task.total else f" of {task.total:.0f}"
        return Text(f"{shown(task.description)}: {now}{of} s")


def doing(quiet: bool) -> Doing:
    """Show on standard error what takes long, and for how many seconds so far; nothing if ``quiet`` or it is no terminal."""

    @contextmanager
    def show(what: str, seconds: float | None) -> Iterator[None]:
        with Progress(SpinnerColumn(), _Seconds(), console=err, transient=True) as lines:
            lines.add_task(what, total=seconds)
            yield

    return (lambda _what, _seconds: nullcontext()) if quiet or not err.is_terminal else show
