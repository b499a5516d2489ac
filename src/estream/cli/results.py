"""Where results go: one JSON line for each row, in the input's order, on disk before the next sweep begins.

Each line of a file has a ``key``: a checksum of the settings and of its row. A file that was left unfinished goes on behind
its last whole line, once each line's key was held against the input. Other forms are made of such a file at the end.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from estream.cli.rows import Row
from estream.errors import OptionError, PackageError
from estream.package.document import checksum_of
from estream.schema import SchemaError, parse

#: Makes the file that was asked for, the second path, of the JSON lines in the first.
Finish = Callable[[Path, Path], None]


@dataclass(frozen=True)
class Target:
    """``path``: the file, None for standard output; ``finish``: what makes it of JSON lines, None where it is those.

    ``temporary``: the file is printed at the end, so its rows have no keys.
    """

    path: Path | None
    resume: bool
    finish: Finish | None = None
    temporary: bool = False

    @property
    def lines(self) -> Path | None:
        """Where the JSON lines are."""
        return self.path if self.path is None or self.finish is None else self.path.with_name(self.path.name + ".rows.jsonl")

    def check(self) -> None:
        """Raise OptionError where the file cannot be begun, or not be gone on with."""
        if self.path is None:
            if self.resume or self.finish:
                raise OptionError("--resume and forms other than JSON lines need --output")
            return
        if not self.path.absolute().parent.is_dir():
            raise OptionError(f"--output: {self.path.absolute().parent}: there is no such folder")
        for path in {self.path, self.lines}:
            if path is not None and path.exists() and (not self.resume or not path.is_file()):
                raise OptionError(f"--output: {path} exists; --resume goes on with it, or give another name")


class Results:
    """A target, opened. ``settings``: all that the results depend on beside the rows."""

    def __init__(self, target: Target, settings: Any) -> None:
        """Raises OptionError as :meth:`Target.check`."""
        target.check()
        self._target, self._settings = target, json.dumps(settings, sort_keys=True)
        self.skipped = 0
        self._file: BinaryIO | None = None
        self._done: Iterator[tuple[int, str]] | None = None
        path = target.lines
        if path is None:
            return
        if target.finish and target.path is not None and target.path.exists():
            self._file = None  # finished already
            return
        if path.exists():
            _cut_half_line(path)
            self._done = _written(path)
        self._file = open(path, "ab")  # noqa: SIM115  # closed by close()

    @property
    def finished(self) -> bool:
        """Whether the file was whole before anything was done."""
        return self._target.path is not None and self._file is None

    def wants(self, row: Row) -> bool:
        """Whether a row, in its order, is not yet written. Raises OptionError where another one is in its place."""
        if self._done is None:
            return True
        found = next(self._done, None)
        if found is None:
            self._done = None
            return True
        if found != (row.index, self._key(row)):
            raise OptionError(
                f"{self._target.lines}: row {found[0]} was made of another input or with other settings than {row.where}; give "
                "another --output"
            )
        self.skipped += 1
        return False

    def write(self, rows: Sequence[Row], values: Sequence[dict[str, Any]]) -> None:
        """Write results, and wait until they are on disk."""
        lines = []
        for row, found in zip(rows, values, strict=True):
            known = {"index": row.index} | ({} if row.id is None else {"id": row.id}) | found
            if self._file is not None and not self._target.temporary:
                known["key"] = self._key(row)
            lines.append(json.dumps(known, allow_nan=False) + "\n")
        if self._file is None:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
            return
        self._file.write("".join(lines).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Make the form that was asked for. Raises OptionError where more is written than the input has."""
        if self._done is not None and next(self._done, None) is not None:
            raise OptionError(f"{self._target.lines}: has more rows than the input; give another --output")
        lines, path = self._target.lines, self._target.path
        self.close()
        if self._target.finish is None or lines is None or path is None or not lines.exists():
            return
        made = path.with_name(path.name + ".tmp")
        try:
            self._target.finish(lines, made)
            with open(made, "rb") as file:
                os.fsync(file.fileno())
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
        lines.unlink()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _key(self, row: Row) -> str:
        return f"{checksum_of((self._settings + json.dumps(row.values, sort_keys=True, default=str)).encode()):016x}"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of ours. Raises PackageError where one is none."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found = parse(line)
            except SchemaError as error:
                raise PackageError(f"{path}: line {number}: {error}") from error
            if not isinstance(found, dict):
                raise PackageError(f"{path}: line {number}: must be a JSON object")
            yield found


def _written(path: Path) -> Iterator[tuple[int, str]]:
    for found in read_lines(path):
        index, key = found.get("index"), found.get("key")
        if not isinstance(index, int) or not isinstance(key, str):
            raise OptionError(f"{path}: a line has no 'index' and 'key', so it is none of ours; give another --output")
        yield index, key


def _cut_half_line(path: Path) -> None:
    """A process that was killed may have left a part of a line at the end."""
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        at = end
        while at > 0:
            begin = max(0, at - 65_536)
            file.seek(begin)
            found = file.read(at - begin).rfind(b"\n")
            if found >= 0:
                at = begin + found + 1
                break
            at = begin
        if at < end:
            file.truncate(at)
