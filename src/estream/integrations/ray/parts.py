"""Results of blocks: a file each, whole or not there, until all are there."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from estream.cli.results import Target, finish_lines
from estream.cli.rows import Place, places
from estream.errors import OptionError
from estream.host.regular_file import read_regular
from estream.host.sizes import MiB
from estream.package.document import checksum_of

_ABOUT = "about.json"
_LARGEST_ABOUT = 64 * MiB


@dataclass(frozen=True)
class Block:
    """The rows of an input from a place on, ``count`` of them; ``number`` counts blocks from 0."""

    number: int
    place: Place
    count: int

    def to_row(self) -> dict[str, int]:
        """A row of a dataset."""
        return {"number": self.number, "count": self.count, **asdict(self.place)}


def blocks_of(path: Path, rows: int) -> list[Block]:
    """A file cut into blocks of so many rows. Raises as :func:`estream.cli.rows.open_rows`."""
    found = list(places(path, rows))
    return [Block(i, begin, end.index - begin.index) for i, (begin, end) in enumerate(pairwise(found))]


def identity_of(path: Path) -> str:
    """A checksum of a file's bytes."""
    parts = bytearray()
    with open(path, "rb") as file:
        while data := file.read(16 * MiB):
            parts += checksum_of(data).to_bytes(8, "little")
    return f"{checksum_of(bytes(parts)):016x}"


class Parts:
    """The folder beside an output, and which blocks it has."""

    def __init__(self, target: Target, about: dict[str, Any]) -> None:
        """``about``: all that the parts depend on. Raises OptionError where the folder was made of something else."""
        assert target.path is not None
        self._target = target
        self.folder = target.path.with_name(target.path.name + ".parts")
        text = json.dumps(about, sort_keys=True)
        if self.folder.exists():
            if not target.resume:
                raise OptionError(f"--output: {self.folder} exists; --resume goes on with it, or give another name")
            if self._about() != text:
                raise OptionError(
                    f"{self.folder}: was made of another input, or with other settings or --block; give another --output"
                )
        else:
            # Not under its own name before it says what it is of.
            made = self.folder.with_name(self.folder.name + ".tmp")
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            _write(made / _ABOUT, text.encode())
            made.rename(self.folder)

    def _about(self) -> str:
        try:
            return read_regular(self.folder / _ABOUT, _LARGEST_ABOUT).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{self.folder}: is none of ours ({error}); give another --output") from error

    def has(self, number: int) -> bool:
        return self._path(number).exists()

    def write(self, number: int, lines: bytes) -> None:
        """Keep a block's lines, and wait until they are on disk."""
        _write(self._path(number), lines)

    def finish(self, count: int) -> None:
        """Make the output of all blocks, in the rows' order."""
        assert self._target.path is not None
        lines = self._target.path.with_name(self._target.path.name + ".rows.jsonl")
        with open(lines, "wb") as file:
            for part in self._parts(count):
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, file)
        finish_lines(self._target, lines)
        shutil.rmtree(self.folder)

    def _parts(self, count: int) -> Iterator[Path]:
        return (self._path(number) for number in range(count))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08}.jsonl"


def _write(path: Path, data: bytes) -> None:
    made = path.with_name(path.name + ".tmp")
    with open(made, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
