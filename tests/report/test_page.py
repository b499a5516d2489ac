"""The page made of a trace."""

import json
from pathlib import Path

from command import run

from estream.report.page import to_html
from estream.report.trace import read_trace


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
