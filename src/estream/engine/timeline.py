"""What happened when in one sweep: a Chrome trace, which Perfetto and ``estream report`` show."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estream.errors import PackageError

#: Rows of the timeline; lanes follow at LANE.
COMPUTE, STALL, LAYER, LANE = 1, 2, 3, 10

#: One reader event: lane, whether a checksum, file, offset, bytes, begin and end in seconds.
ReaderEvent = tuple[int, bool, int, int, int, float, float]


@dataclass
class Timeline:
    """Collects spans and counters in seconds of the monotonic clock."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def span(self, row: int, name: str, begin: float, end: float, **details: Any) -> None:
        """Something that took time, on one row."""
        self.events.append(
            {"ph": "X", "pid": 1, "tid": row, "name": name, "ts": begin * 1e6, "dur": (end - begin) * 1e6, "args": details}
        )

    def count(self, name: str, at: float, value: int) -> None:
        """A value that holds from now on."""
        self.events.append({"ph": "C", "pid": 1, "name": name, "ts": at * 1e6, "args": {"bytes": value}})

    def add_reads(self, events: list[ReaderEvent]) -> None:
        for lane, checksum, file, offset, size, begin, end in events:
            name = "checksum" if checksum else ("pages", "embedding")[file]
            self.span(LANE + lane, name, begin, end, offset=offset, bytes=size)

    def save(self, path: Path, stats: dict[str, Any]) -> None:
        """Write the trace, with the sweep's figures beside it.

        Raises:
            PackageError: the file cannot be written.

        """
        names = {COMPUTE: "compute", STALL: "stall", LAYER: "layers"}
        rows = sorted({e["tid"] for e in self.events if "tid" in e})
        labels = [
            {
                "ph": "M",
                "pid": 1,
                "tid": row,
                "name": "thread_name",
                "args": {"name": names.get(row, f"lane {row - LANE}")},
            }
            for row in rows
        ]
        start = min((e["ts"] for e in self.events), default=0.0)
        shifted = [event | {"ts": event["ts"] - start} for event in self.events]
        try:
            path.write_text(json.dumps({"traceEvents": labels + shifted, "estream": stats}, allow_nan=False))
        except OSError as error:
            raise PackageError(f"{path}: the trace cannot be written ({error.strerror})") from error
