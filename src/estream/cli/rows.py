"""Rows of an input: JSON lines, Parquet, or lines of text; one row at a time is in memory, or a Parquet file's few."""

import codecs
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from estream.errors import OptionError, PromptError
from estream.host.sizes import MiB, format_bytes
from estream.schema import SchemaError, parse, shown

#: Bytes of a row of JSON or text. Longer ones are no prompt of any model.
LONGEST_ROW = 64 * MiB
#: Rows of a Parquet file that are decoded at once.
_PARQUET_ROWS = 256
_JSON = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class Row:
    """A row by its ``index`` in the input, counted from 0; ``values`` by column. A line of text is the column "text"."""

    index: int
    values: dict[str, Any]
    where: str

    @property
    def id(self) -> Any:
        """What the input calls the row; None where it says nothing."""
        return self.values.get("id")

    def text(self, *names: str) -> str:
        """The text of the first of these columns that the row has. Raises PromptError where it has none, or no text."""
        for name in names:
            if name in self.values:
                return self._text(name)
        raise PromptError(f"{self.where}: has no {' or '.join(map(repr, names))}, but {_names(self.values)}")

    def _text(self, name: str) -> str:
        value = self.values[name]
        if not isinstance(value, str):
            raise PromptError(f"{self.where}: {name!r} must be a text, found {shown(value)}")
        return value

    def texts(self, name: str) -> list[str]:
        """A column's list of texts. Raises PromptError."""
        value = self.values.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise PromptError(f"{self.where}: {name!r} must be a list of at least one text, found {shown(value)}")
        return value


@dataclass(frozen=True)
class Place:
    """Where a row begins: its ``index``; of a file of lines its byte, and the number of the line before it."""

    index: int = 0
    offset: int = 0
    line: int = 0


@dataclass(frozen=True)
class Rows:
    """Rows one after another, and how many there are; None where that is not known before they are read."""

    rows: Iterator[Row]
    count: int | None


def open_rows(path: Path, place: Place = Place()) -> Rows:
    """The rows of a file by its name's ending: .jsonl, .parquet, anything else is lines of text; "-" is standard input,
    JSON lines where its first line is a JSON object. Of a file, the rows from a place on that :func:`places` gave.

    Raises:
        OptionError: there is no such file, or reading Parquet needs a package that is not there.
        PromptError: a row is no row; raised as it comes.

    """
    if str(path) == "-":
        if sys.stdin is None:
            raise PromptError("standard input is closed, so there is nothing to read from it")
        lines = _lines(sys.stdin.buffer, "standard input")
        first = next(lines, None)
        if first is None:
            return Rows(iter(()), 0)
        rows = _json if first[1].lstrip().startswith("{") else _texts
        return Rows(rows(chain([first], lines), "standard input"), None)
    if not path.is_file():
        raise OptionError(f"{path}: {'not a regular file' if path.exists() else 'there is no such file'}")
    if path.suffix == ".parquet":
        return _parquet(path, place.index)
    rows = _json if path.suffix in _JSON else _texts
    return Rows(rows(_lines_of(path, place), str(path), place.index), None if place.index else _count(path))


def places(path: Path, every: int) -> Iterator[Place]:
    """Where a file's first row begins, and each row that is so many behind the last; at the end, the end.

    Raises as :func:`open_rows`.
    """
    if path.suffix == ".parquet":
        count = open_rows(path).count
        assert count is not None
        yield from (Place(index) for index in range(0, count, every))
        yield Place(count)
        return
    open_rows(path)
    with open(path, "rb") as file:
        place, lines = Place(), _lines(file, str(path))
        while last := list(islice(lines, every)):
            yield place
            place = Place(place.index + len(last), file.tell(), last[-1][0])
    yield place


def _json(lines: Iterator[tuple[int, str]], name: str, first: int = 0) -> Iterator[Row]:
    for index, (number, line) in enumerate(lines, first):
        where = f"{name}: line {number}"
        try:
            values = parse(line.encode())
        except (SchemaError, OverflowError) as error:
            raise PromptError(f"{where}: {error}") from error
        if not isinstance(values, dict):
            raise PromptError(f"{where}: must be a JSON object, found {shown(values)}")
        yield Row(index, values, where)


def _texts(lines: Iterator[tuple[int, str]], name: str, first: int = 0) -> Iterator[Row]:
    for index, (number, line) in enumerate(lines, first):
        yield Row(index, {"text": line}, f"{name}: line {number}")


def _lines_of(path: Path, place: Place) -> Iterator[tuple[int, str]]:
    with open(path, "rb") as file:
        file.seek(place.offset)
        yield from _lines(file, str(path), place.line)


def _lines(file: BinaryIO, name: str, number: int = 0) -> Iterator[tuple[int, str]]:
    """Numbers from ``number`` + 1, and lines without their ends; blank ones are none."""
    while line := file.readline(LONGEST_ROW + 1):
        number += 1
        if len(line) > LONGEST_ROW:
            raise PromptError(f"{name}: line {number}: more than {format_bytes(LONGEST_ROW)}")
        start = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
        try:
            text = line[start:].decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise PromptError(f"{name}: line {number}: not UTF-8 text ({error.reason})") from error
        if text.strip():
            yield number, text


def _count(path: Path) -> int:
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(MiB):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def parquet() -> Any:
    """``pyarrow`` with Parquet. Raises OptionError where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise OptionError("Parquet needs pyarrow: pip install 'estream[parquet]'") from error
    return pyarrow


def _parquet(path: Path, first: int) -> Rows:
    arrow = parquet()
    try:
        file = arrow.parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise PromptError(f"{path}: cannot be read as Parquet ({_line(error)})") from error

    def rows() -> Iterator[Row]:
        index, groups = 0, list(range(file.num_row_groups))
        while groups and index + file.metadata.row_group(groups[0]).num_rows <= first:
            index += file.metadata.row_group(groups.pop(0)).num_rows
        try:
            for batch in file.iter_batches(_PARQUET_ROWS, row_groups=groups):
                for values in batch.to_pylist():
                    if index >= first:
                        yield Row(index, values, f"{path}: row {index}")
                    index += 1
        except arrow.ArrowException as error:
            raise PromptError(f"{path}: row {index}: cannot be read ({_line(error)})") from error

    return Rows(rows(), file.metadata.num_rows)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _names(values: dict[str, Any]) -> str:
    return ", ".join(json.dumps(name, ensure_ascii=False)[:60] for name in list(values)[:8]) or "nothing"
