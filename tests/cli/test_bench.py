"""``estream bench``."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import run, run_apart

from estream.cli import bench_prompts
from estream.package.package import Package


def test_bench_prints_rows_in_llama_benchs_form(demo_package: Package):
    result = run_apart("bench", demo_package.path, "-p", "8,40", "-r", "2", "--memory", "300MiB", "--profile")
    assert result.returncode == 0, result.stderr
    head, _, *rows = result.stdout.splitlines()[:4]
    assert [c.strip() for c in head.strip("|").split("|")][5:8] == ["test", "t/s", "TTFT s"]
    assert [row.split("|")[6].strip() for row in rows] == ["pp8", "pp40"]
    assert "products" in result.stdout
    assert "between pages" in result.stdout
    row = json.loads(run("bench", demo_package.path, "-p", "24", "-r", "2", "-o", "json").stdout)[0]
    assert row["test"] == "pp24"
    assert row["work_s"]["products"] > 0
    assert sum(row["work_s"].values()) == pytest.approx(row["ttft_s"])
    head, line = run("bench", demo_package.path, "-p", "24", "-r", "1", "-o", "csv").stdout.splitlines()
    assert dict(zip(head.split(","), line.split(","), strict=True))["test"] == "pp24"
    for lengths in ("x", "", "0", "8,,9"):
        wrong = run("bench", demo_package.path, "-p", lengths)
        assert wrong.returncode == 2
        assert "--prompt-tokens" in wrong.stderr


def test_bench_cuts_prompts_from_a_text(demo_package: Package, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("\ufeffThe quick brown fox jumps over the lazy dog, again and again. " * 20, "utf-8")
    result = run("bench", demo_package.path, "--corpus", text, "-p", "24,100", "-r", "2", "-o", "json")
    assert result.returncode == 0, result.stderr
    assert [row["test"] for row in json.loads(result.stdout)] == ["pp24", "pp100"]
    text.write_text("too short", "utf-8")
    wrong = run("bench", demo_package.path, "--corpus", text, "-p", "24")
    assert wrong.returncode == 2
    assert "too few for a prompt of 24" in wrong.stderr
    text.write_bytes(b"\xff" * 100)
    wrong = run("bench", demo_package.path, "--corpus", text, "-p", "24")
    assert wrong.returncode == 1
    assert "not UTF-8 text" in wrong.stderr
    missing = run("bench", demo_package.path, "--corpus", tmp_path / "none.txt", "-p", "24")
    assert missing.returncode == 2
    assert "none.txt: cannot be read" in missing.stderr


def test_a_character_cut_by_the_limit_is_left_out(demo_package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench_prompts, "MOST_BYTES", 101)
    (tmp_path / "text.txt").write_text("ä" * 200, "utf-8")
    whole = bench_prompts.bench_prompts(demo_package, tmp_path / "text.txt", 1, 1)(1, 0)
    assert len(whole) == 1
    assert bench_prompts._read(tmp_path / "text.txt") == "ä" * 50


def test_cuts_begin_at_even_distances():
    ids = np.arange(100)
    assert [bench_prompts.cut(ids, 20, number, 5).tolist()[::19] for number in range(5)] == [
        [0, 19],
        [20, 39],
        [40, 59],
        [60, 79],
        [80, 99],
    ]
    assert len({tuple(bench_prompts.cut(ids, 90, number, 3)) for number in range(3)}) == 3
    assert bench_prompts.cut(ids, 100, 0, 1).tolist() == ids.tolist()
