"""An input read from places inside it."""

import json
from itertools import islice, pairwise
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from estream.cli.rows import open_rows, places
from estream.errors import PromptError

LINES = [json.dumps({"text": f"naïve {i}"}) for i in range(11)]


def _jsonl(path: Path) -> Path:
    path = path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join([*LINES[:3], "", "  ", *LINES[3:9], "", *LINES[9:]]).encode())
    return path


def _text(path: Path) -> Path:
    path = path / "rows.txt"
    path.write_bytes("\r\n".join(["", "one", "", *LINES, "", ""]).encode())
    return path


def _parquet(path: Path) -> Path:
    path = path / "rows.parquet"
    table = pyarrow.table({"text": LINES})
    pyarrow.parquet.write_table(table, path, row_group_size=4)
    return path


@pytest.mark.parametrize("make", [_jsonl, _text, _parquet])
@pytest.mark.parametrize("every", [1, 3, 4, 100])
def test_rows_from_each_place_are_those_of_the_whole(make, every: int, tmp_path: Path):
    path = make(tmp_path)
    whole = list(open_rows(path).rows)
    found = list(places(path, every))
    assert [place.index for place in found] == [*range(0, len(whole), every), len(whole)]
    for begin, end in pairwise(found):
        count = end.index - begin.index
        assert list(islice(open_rows(path, begin).rows, count)) == whole[begin.index : end.index]


def test_an_empty_input_has_no_block(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("\n\n")
    assert [place.index for place in places(tmp_path / "rows.jsonl", 5)] == [0]


def test_a_line_behind_a_place_is_named_by_its_number_in_the_file(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n\n{}\n[]\n")
    place = list(places(path, 2))[1]
    with pytest.raises(PromptError, match="line 4: must be a JSON object"):
        next(open_rows(path, place).rows)
