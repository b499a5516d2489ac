"""How the command line speaks: results on standard output, progress and errors on standard error."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from estream.conversion.convert import Progress as ProgressCallback

# Paths and tokens are printed as they are: brackets in them are not markup.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)
if not out.is_terminal:
    # Nothing is wrapped in what other programs read.
    out.width = 1000


def say(text: str) -> None:
    """A sentence on standard output, wrapped by the terminal alone."""
    out.print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_pairs(title: str, rows: dict[str, str]) -> None:
    """A small table of names and values."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    # A path or a name must never be cut short.
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    out.print(table)


@contextmanager
def progress(what: str) -> Iterator[ProgressCallback | None]:
    """A progress bar with speed and an estimate of the time left, where standard error is a terminal."""
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
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
