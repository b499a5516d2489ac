"""What the commands of the services have in common: options, and the way from rows to results."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from estream.api.model import Model
from estream.cli.options import memory_of
from estream.cli.output import err, print_json
from estream.cli.results import Results, Target
from estream.cli.rows import Row, open_rows
from estream.engine.options import LoadOptions
from estream.errors import OptionError
from estream.host.sizes import format_bytes
from estream.package.document import checksum_of
from estream.package.manifest import MANIFEST
from estream.package.package import open_package
from estream.services.jobs import Job, answer_in_order

Package = Annotated[Path, typer.Argument(metavar="PKG", help="The package folder.")]
Text = Annotated[str | None, typer.Option("--text", help="One text.")]
Input = Annotated[
    Path | None,
    typer.Option("--input", help="Rows: F.jsonl, F.parquet, lines of text in any other file, - for standard input."),
]
Output = Annotated[
    Path | None, typer.Option("--output", help="Write results here, as JSON lines or F.parquet; else to standard output.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an output that was left unfinished.")]
Column = Annotated[str, typer.Option("--column", help="The column that the text is in.")]
Device = Annotated[str, typer.Option("--device", help="cpu, or qnn for the NPU.")]
AllowSpecial = Annotated[
    bool, typer.Option("--allow-special", help="Special tokens that a text spells out are meant, since the caller rendered it.")
]
Truncate = Annotated[bool, typer.Option("--truncate", help="Shorten a text that is too long, instead of refusing it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print what it cost as one JSON document; of one text, its result.")]


@dataclass(frozen=True)
class Work:
    """A command's package, rows and target. ``load`` are the options of the device; ``settings`` what results depend on."""

    name: str
    path: Path
    input: Path
    target: Target
    load: LoadOptions
    settings: dict[str, Any]
    as_json: bool

    def kind(self) -> dict[str, Any]:
        """All that a result depends on beside its row."""
        identity = f"{checksum_of((self.path / MANIFEST).read_bytes()):016x}"
        kind = {"command": self.name, "package": identity, "device": self.load.device, "activations": self.load.activations}
        return kind | self.settings


#: Makes a row's job; and what must be read before all rows, if anything.
Jobs = Callable[[Row], Job[Any]]
MakeJobs = Callable[[Model], tuple[Jobs, Job[None] | None]]


def load_options(memory: str | None, threads: int | None, device: str, activations: str) -> LoadOptions:
    """Raises OptionError where one cannot be used."""
    options = LoadOptions(memory_of(memory), threads, device, activations)
    options.check()
    return options


def one_of(text: str | None, given: Path | None) -> None:
    """Raise OptionError unless there is one text or one input."""
    if (text is None) == (given is None):
        raise OptionError("give one of --text and --input")


def run_rows(work: Work, make: MakeJobs) -> None:
    """Read the rows, and write a result for each: in this process, or as :func:`running_with` says."""
    _RUNNER.get()(work, make)


@contextmanager
def running_with(runner: Callable[[Work, MakeJobs], None]) -> Iterator[None]:
    """Commands inside the block have their rows read by this."""
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)


def _run_here(work: Work, make: MakeJobs) -> None:
    """What is written when a signal comes stays written."""
    begin = time.perf_counter()
    package = open_package(work.path, work.load.device)
    results = Results(work.target, work.kind())
    if results.finished:
        err.print(f"{work.target.path}: is finished already", soft_wrap=True)
        return
    source = open_rows(work.input)
    cost = _Cost()
    try:
        with Model(package, work.load) as model, progress(work.name, source.count) as advance:
            jobs, before = make(model)
            if before is not None:
                next(answer_in_order(model, [before]))
            waiting: list[Row] = []

            def taken() -> Iterator[Job[Any]]:
                for row in source.rows:
                    if results.wants(row):
                        waiting.append(row)
                        yield jobs(row)
                    else:
                        advance(1)

            for answers in answer_in_order(model, taken()):
                results.write(waiting[: len(answers)], [each.to_json() for each in answers])
                del waiting[: len(answers)]
                cost.add(answers)
                advance(len(answers))
        results.finish()
    finally:
        results.close()
    cost.tell(work, results.skipped, time.perf_counter() - begin)


_RUNNER: ContextVar[Callable[[Work, MakeJobs], None]] = ContextVar("runner", default=_run_here)


def print_one(result: Any) -> None:
    """One text's result as a JSON document, with what its sweep cost."""
    print_json(result.to_json() | {"stats": result.stats.to_json()})


class _Cost:
    """What all sweeps cost together."""

    def __init__(self) -> None:
        self._rows = 0
        self._sums = dict.fromkeys(("sweeps", "bytes_read", "compute_s", "stall_s"), 0.0)
        self._last: Any = None

    def add(self, answers: list[Any]) -> None:
        self._rows += len(answers)
        for stats in {id(each.stats): each.stats for each in answers}.values():
            self._sums["sweeps"] += 1
            for name in ("bytes_read", "compute_s", "stall_s"):
                self._sums[name] += getattr(stats, name)
            self._last = stats

    def tell(self, work: Work, skipped: int, seconds: float) -> None:
        """Print the sums: as JSON where asked for, else in a line where the results went to a file."""
        sweeps, size = int(self._sums["sweeps"]), int(self._sums["bytes_read"])
        if work.target.path is None or work.target.temporary:
            return
        if work.as_json:
            facts: dict[str, Any] = {"rows": self._rows, "skipped": skipped, "sweeps": sweeps, "bytes_read": size}
            facts |= {"seconds": seconds, "compute_s": self._sums["compute_s"], "stall_s": self._sums["stall_s"]}
            if self._last is not None:
                facts |= {"peak_rss_bytes": self._last.peak_rss_bytes, "budget_bytes": self._last.budget_bytes}
            print_json(facts)
        else:
            before = f", {skipped} were there" if skipped else ""
            err.print(
                f"{self._rows} rows in {sweeps} sweeps{before}; {seconds:.1f} s, {format_bytes(size)} read", soft_wrap=True
            )


@contextmanager
def progress(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar of rows with the time that is left, on a terminal alone."""
    if not err.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda rows: bar.update(task, advance=rows)
