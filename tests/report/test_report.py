"""Traces and the pictures made of them."""

import json
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from cgroup import estream_command

from estream.engine.timeline import COMPUTE, LANE, LAYER, STALL
from estream.errors import PackageError
from estream.package.package import Package
from estream.report.page import to_html
from estream.report.trace import read_trace


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(estream_command(*arguments), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def trace_file(demo_package: Package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    result = run("run", demo_package.path, "--tokens", "64", "--memory", "140MiB", "--threads", "1", "--trace", path, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(path.read_text())["estream"]["ttft_s"] == json.loads(result.stdout)["ttft_s"]
    return path


def test_a_trace_holds_every_page_and_request_and_sums_to_the_time(trace_file: Path, demo_package: Package):
    trace = read_trace(trace_file)
    computed = [span for span in trace.spans if span.row == COMPUTE]
    assert [s.label for s in computed if s.name == "attention"] == [f"layer {i} attention" for i in range(6)]
    assert len([s for s in trace.spans if s.row == LAYER]) == 6
    assert all(a.end <= b.begin for a, b in pairwise(computed))
    for lane in trace.lanes:
        spans = sorted((s.begin, s.end) for s in trace.spans if s.row == lane)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))
    events = json.loads(trace_file.read_text())["traceEvents"]
    reads = [e["args"]["bytes"] for e in events if e.get("tid", 0) >= LANE and e["ph"] == "X" and e["name"] != "checksum"]
    assert sum(reads) == trace.stats["bytes_read"]
    checked = {e["args"]["offset"] for e in events if e["name"] == "checksum"}
    assert {p.offset for p in demo_package.manifest.tape if p.spec.kind == "attention"} <= checked
    seconds = trace.seconds_by_kind()
    assert sum(seconds.values()) == pytest.approx(trace.stats["ttft_s"], rel=0.02)
    assert abs(sum(s.end - s.begin for s in trace.spans if s.row == STALL) - trace.stats["stall_s"]) < 1e-4
    assert max(size for _, size in trace.fill) <= trace.stats["config"]["ring_bytes"]


def test_pages_and_pictures(trace_file: Path, tmp_path: Path):
    html = to_html(read_trace(trace_file), "a <name>")
    assert "a &lt;name&gt;" in html
    assert "layer 3 expert" in html
    assert "http" not in html.replace("http-equiv", "")
    result = run("report", trace_file, "-o", tmp_path / "page.html", "--json")
    assert set(json.loads(result.stdout)["seconds"]) >= {
        "attention",
        "router",
        "expert",
        "head",
        "waiting for pages",
        "between",
    }
    assert run("report", trace_file, "-o", tmp_path / "picture.png").returncode == 0
    assert (tmp_path / "picture.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert run("report", trace_file, "-o", tmp_path / "picture.gif").returncode == 2


def test_what_is_not_a_trace_is_refused(tmp_path: Path):
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    with pytest.raises(PackageError, match="not a trace of 'estream run --trace'"):
        read_trace(tmp_path / "other.json")
    keys = ("ttft_s", "prompt_tokens", "bytes_read", "read_s", "peak_rss_bytes", "budget_bytes")
    (tmp_path / "empty.json").write_text(json.dumps({"traceEvents": [], "estream": dict.fromkeys(keys, 1)}))
    with pytest.raises(PackageError, match="the trace is empty"):
        read_trace(tmp_path / "empty.json")
    with pytest.raises(PackageError, match="absent.json: cannot be read"):
        read_trace(tmp_path / "absent.json")
