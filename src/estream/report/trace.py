"""Reads a trace file and sums up its time by kind of work."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from estream.engine.timeline import COMPUTE, LANE, STALL
from estream.errors import PackageError
from estream.host.regular_file import read_regular
from estream.host.sizes import MiB
from estream.schema import Bytes, Count, NotNegative, Positive, SchemaError, from_plain, parse

#: A sweep of a hundred layers with thousands of pages leaves some megabytes.
LARGEST_TRACE = 256 * MiB
#: Microseconds from the start: within it, milliseconds can be told apart.
_Time = Annotated[float, Meta(ge=0, le=1e15)]


class _Event(msgspec.Struct):
    """An event of Chrome's format, as far as it is drawn."""

    ph: str
    tid: Annotated[int, Meta(ge=0, le=LANE + 64)] = 0
    name: str = ""
    ts: _Time = 0.0
    dur: _Time = 0.0
    args: dict[str, Any] = {}


class _Stats(msgspec.Struct):
    ttft_s: Positive
    prompt_tokens: Count
    bytes_read: Bytes
    read_s: NotNegative
    peak_rss_bytes: Bytes
    budget_bytes: Bytes


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    estream: dict[str, Any]


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
        file = from_plain(parse(read_regular(path, LARGEST_TRACE)), _File)
        from_plain(file.estream, _Stats)
    except OSError as error:
        raise PackageError(f"{path}: cannot be read ({error.strerror})") from error
    except SchemaError as error:
        raise PackageError(f"{path}: not a trace of 'estream run --trace' ({error})") from error
    events = file.events
    spans = [
        Span(e.tid, e.name, e.ts / 1e6, (e.ts + e.dur) / 1e6, str(e.args.get("page", e.name))) for e in events if e.ph == "X"
    ]
    fill = sorted((e.ts / 1e6, e.args["bytes"]) for e in events if e.ph == "C" and isinstance(e.args.get("bytes"), int))
    if not any(span.end > 0 for span in spans):
        raise PackageError(f"{path}: the trace is empty")
    return Trace(spans, fill, file.estream)
