"""What docs/security.md says bounds an input is there, and every kind of input has a row."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
INPUTS = {
    "manifest",
    "pages",
    "embedding",
    "small files",
    "config.json",
    "safetensors",
    "GGUF",
    "tokenizer",
    "template",
    "messages",
    "prompt",
    "profiles",
    "traces",
    "environment",
    "cgroup files",
}


def _rows() -> list[list[str]]:
    lines = (ROOT / "docs/security.md").read_text("utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def _is_there(file: str, name: str) -> bool:
    """Whether the file defines the name: in Python at the top level, in C++ anywhere."""
    paths = [path for path in (ROOT / "src/estream" / file, ROOT / "csrc" / file) if path.is_file()]
    if not paths:
        return False
    text, word = paths[0].read_text("utf-8"), re.escape(name)
    if paths[0].suffix == ".py":
        # Several names may be assigned at once.
        return (
            re.search(rf"^(?:def|class) {word}\b|^(?:\w+, )*{word}(?:, \w+)*(?::[^=\n]+)? = ", text, re.MULTILINE) is not None
        )
    return re.search(rf"^[\w:<>&* ]+ \*?{word}(?:\(| = )", text, re.MULTILINE) is not None


@pytest.mark.parametrize("row", _rows(), ids=lambda row: " ".join(row[:3])[:60])
def test_every_bound_is_there(row: list[str]):
    assert len(row) == 4
    bounds = re.findall(r"`([\w/.]+):(\w+)`", row[3])
    assert bounds, "each row names what bounds it"
    assert len(bounds) == row[3].count("`") // 2
    assert [f"{file}:{name}" for file, name in bounds if not _is_there(file, name)] == []


def test_every_kind_of_input_has_a_row():
    assert INPUTS - {row[0] for row in _rows()} == set()


def test_a_bound_that_is_gone_is_noticed():
    assert _is_there("cli/prompt.py", "limit_bytes")
    assert not _is_there("cli/prompt.py", "limit")
    assert not _is_there("cli/absent.py", "limit_bytes")
