"""Reads a trace file and sums up its time by kind of work."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estream.engine.timeline import COMPUTE, LANE, STALL
from estream.errors import PackageError


@dataclass(frozen=True)
class Span:
    """One piece of work in the timeline; ``begin`` and ``end`` in seconds from the start of the trace."""

    row: int
    name: str
    begin: float
    end: float
    label: str


@dataclass(frozen=True)
class Trace:
    """A timeline. ``fill`` has times in seconds and the ring's bytes in use from then on; ``stats`` is the sweep's
    ``SweepStats`` as JSON values.
    """

    spans: list[Span]
    fill: list[tuple[float, int]]
    stats: dict[str, Any]

    @property
    def end(self) -> float:
        return max(span.end for span in self.spans)

    @property
    def lanes(self) -> list[int]:
        return sorted({span.row for span in self.spans if span.row >= LANE})

    def seconds_by_kind(self) -> dict[str, float]:
        """Return seconds of computing by kind of page, of waiting for pages, and of all else on the computing thread."""
        seconds: dict[str, float] = defaultdict(float)
        for span in self.spans:
            if span.row == COMPUTE:
                seconds[span.name] += span.end - span.begin
            elif span.row == STALL:
                seconds["waiting for pages"] += span.end - span.begin
        seconds["between"] = max(0.0, float(self.stats["ttft_s"]) - sum(seconds.values()))
        return dict(seconds)


def read_trace(path: Path) -> Trace:
    """Read what ``estream run --trace`` wrote.

    Raises:
        PackageError: the file is absent or not such a trace.

    """
    try:
        data = json.loads(path.read_text("utf-8"))
        events, stats = data["traceEvents"], data["estream"]
        spans = [
            Span(e["tid"], e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, str(e["args"].get("page", e["name"])))
            for e in events
            if e["ph"] == "X"
        ]
        {key: stats[key] for key in ("ttft_s", "prompt_tokens", "bytes_read", "read_s", "peak_rss_bytes", "budget_bytes")}
        fill = sorted((e["ts"] / 1e6, int(e["args"]["bytes"])) for e in events if e["ph"] == "C")
    except OSError as error:
        raise PackageError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PackageError(f"{path}: not a trace of 'estream run --trace' ({type(error).__name__}: {error})") from error
    if not spans:
        raise PackageError(f"{path}: the trace is empty")
    return Trace(spans, fill, stats)
