"""``estream bench``."""

import json

import pytest
from command import run

from estream.package.package import Package


def test_bench_prints_rows_in_llama_benchs_form(demo_package: Package):
    result = run("bench", demo_package.path, "-p", "8,40", "-r", "2", "--memory", "300MiB", "--profile")
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
