"""Forms of results other than JSON lines: Parquet, an array of vectors, a ranking."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from estream.cli.results import Finish, read_lines
from estream.cli.rows import parquet
from estream.errors import OptionError

#: Rows in memory at once.
_ROWS = 1024


def form_of(path: Path | None, form: str | None = None) -> Finish | None:
    """What makes a file of JSON lines by its name's ending or by ``form``; None where it is those itself.

    Raises:
        OptionError: there is no such form, or it needs a package that is not there.

    """
    if form not in (None, "jsonl", "npy"):
        raise OptionError(f"--format must be jsonl or npy, not {form!r}")
    if form == "npy" or (form is None and path is not None and path.suffix == ".npy"):
        return to_npy
    if path is not None and path.suffix == ".parquet":
        parquet()
        return to_parquet
    return None


def to_parquet(lines: Path, made: Path) -> None:
    """Write the rows as Parquet, a column for each name."""
    arrow = parquet()
    schema = None
    for rows in _chunks(lines):
        found = arrow.Table.from_pylist(rows).schema
        schema = found if schema is None else arrow.unify_schemas([schema, found], promote_options="permissive")
    if schema is None:
        schema = arrow.schema([("index", arrow.int64())])
    with arrow.parquet.ParquetWriter(made, schema) as writer:
        for rows in _chunks(lines):
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def to_npy(lines: Path, made: Path) -> None:
    """Write the vectors as float32 [rows, dimensions]. Raises OptionError where rows have none."""
    count, size = 0, 0
    for row in read_lines(lines):
        if "vector" not in row:
            raise OptionError("--format npy is for vectors")
        count, size = count + 1, len(row["vector"])
    with open(made, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, size)}
        np.lib.format.write_array_header_1_0(file, header)
        for row in read_lines(lines):
            file.write(np.asarray(row["vector"], "<f4").tobytes())


def ranked(top: int | None, then: Finish | None) -> Finish:
    """Makes a ranking, best first, of documents with scores; ``then`` makes another form of that."""

    def finish(lines: Path, made: Path) -> None:
        scores = [(-row["score"], row["index"]) for row in read_lines(lines)]
        best = {index: place for place, (_, index) in enumerate(sorted(scores)[:top])}
        kept = sorted((row for row in read_lines(lines) if row["index"] in best), key=lambda row: best[row["index"]])
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in kept)
        if then is None:
            made.write_text(text, "utf-8")
            return
        between = made.with_name(made.name + ".ranked")
        try:
            between.write_text(text, "utf-8")
            then(between, made)
        finally:
            between.unlink(missing_ok=True)

    return finish


def _chunks(lines: Path) -> Iterator[list[dict[str, Any]]]:
    rows = read_lines(lines)
    while found := list(islice(rows, _ROWS)):
        yield found
