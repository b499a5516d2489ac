"""Traces: what they hold, and what is not one."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from command import run

from estream.engine.timeline import COMPUTE, LANE, LAYER, STALL
from estream.errors import PackageError
from estream.package.package import Package
from estream.report.trace import read_trace


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


STATS = dict.fromkeys(("ttft_s", "prompt_tokens", "bytes_read", "read_s", "peak_rss_bytes", "budget_bytes"), 1)
EVENT = {"ph": "X", "tid": 1, "name": "expert", "ts": 1, "dur": 1, "args": {}}
ODD_EVENTS = ({"tid": 10**9}, {"tid": -1}, {"tid": "1"}, {"ts": -1}, {"dur": 1e300}, {"name": 5}, {"args": []}, {"ph": None})
ODD_STATS = ({"ttft_s": 0}, {"ttft_s": "1"}, {"read_s": -1}, {"bytes_read": 10**400}, {"prompt_tokens": None})


@pytest.mark.parametrize(
    "values",
    [
        *({"traceEvents": [EVENT | odd], "estream": STATS} for odd in ODD_EVENTS),
        *({"traceEvents": [EVENT], "estream": STATS | odd} for odd in ODD_STATS),
        {"traceEvents": 5, "estream": STATS},
        {"traceEvents": [5], "estream": STATS},
        {"traceEvents": [EVENT], "estream": []},
        [],
    ],
    ids=lambda values: json.dumps(values)[-60:],
)
def test_odd_traces_are_refused_in_one_line(values: object, tmp_path: Path):
    (tmp_path / "trace.json").write_text(json.dumps(values))
    result = run("report", tmp_path / "trace.json", "-o", tmp_path / "page.html")
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert "not a trace" in result.stderr


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"a": NaN}', "\xff", '{"traceEvents": [' + "9" * 5000])
def test_what_is_no_json_is_refused(text: str, tmp_path: Path):
    (tmp_path / "trace.json").write_text(text, "latin-1")
    result = run("report", tmp_path / "trace.json", "-o", tmp_path / "page.html")
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)


def test_what_is_not_a_trace_is_refused(tmp_path: Path):
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    with pytest.raises(PackageError, match="not a trace of 'estream run --trace'"):
        read_trace(tmp_path / "other.json")
    (tmp_path / "empty.json").write_text(json.dumps({"traceEvents": [], "estream": STATS}))
    with pytest.raises(PackageError, match="the trace is empty"):
        read_trace(tmp_path / "empty.json")
    with pytest.raises(PackageError, match="absent.json: cannot be read"):
        read_trace(tmp_path / "absent.json")
