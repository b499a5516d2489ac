"""Calibration texts, and what is none."""

import json
from pathlib import Path

import numpy as np
import pytest
from paths import CALIBRATION, DEMO, HELD_OUT

from estream.conversion.convert import ConvertOptions, convert
from estream.errors import OptionError


def test_the_text_is_not_held_out():
    text = CALIBRATION.read_text()
    rows = [json.loads(line)["description"] for line in HELD_OUT.read_text().splitlines()]
    assert not [row for row in rows if f"Description: {row}\n" in text]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros(100, np.int32), r"100 tokens are too few, this model needs at least 2048"),
        (np.full(2048, 330), r"id 330 is outside the vocabulary, 0\.\.329"),
        (np.full(2048, -1), r"id -1 is outside the vocabulary"),
        (np.zeros(2048), r"expected whole numbers in one dimension, not float64 \(2048,\)"),
        (np.zeros((2048, 2), int), r"expected whole numbers in one dimension"),
        ("a text", r"has no tokenizer.json to encode the text with; give token ids instead"),
    ],
)
def test_unusable_texts_are_refused(tiny_source: Path, tmp_path: Path, content, message: str):
    path = tmp_path / ("text.txt" if isinstance(content, str) else "ids.npy")
    path.write_text(content) if isinstance(content, str) else np.save(path, content)
    with pytest.raises(OptionError, match=message):
        convert(tiny_source, tmp_path / "out.estream", ConvertOptions(calibrate=path))
    assert not (tmp_path / "out.estream").exists()


def test_unreadable_texts_are_refused(tmp_path: Path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 5000)
    (tmp_path / "broken.npy").write_bytes(b"not an array")
    for name, message in (
        ("absent.txt", "No such file"),
        ("absent.npy", "No such file"),
        ("latin.txt", "not UTF-8 text .* at byte 3"),
        ("broken.npy", "not an .npy file"),
    ):
        with pytest.raises(OptionError, match=f"{name}: .*{message}|{name}: {message}"):
            convert(DEMO, tmp_path / "out.estream", ConvertOptions(calibrate=tmp_path / name))
