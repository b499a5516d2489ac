"""Output of the command line: results go to standard output, progress and errors to standard error."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from estream.conversion.convert import Progress as ProgressCallback

# Without markup, so that brackets in paths and tokens are printed.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)
if not out.is_terminal:
    # Other programs read this, so lines are not wrapped.
    out.width = 1000


def say(text: str) -> None:
    """Print a line to standard output; only the terminal wraps it."""
    out.print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_pairs(title: str, rows: dict[str, str]) -> None:
    """Print a table of names and values."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    # Fold, since a truncated path or name is of no use.
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
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
