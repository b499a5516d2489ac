"""Draws a timeline as a PNG picture; needs the ``plot`` extra."""

from pathlib import Path

from estream.engine.timeline import COMPUTE, LANE, LAYER, STALL
from estream.host.sizes import MiB
from estream.report.figure import drawn
from estream.report.page import COLORS
from estream.report.trace import Trace


def to_png(trace: Trace, name: str, path: Path) -> None:
    """Draw a timeline into the file ``path``; ``name`` is its title.

    Raises:
        OptionError: matplotlib is not installed.
        PackageError: the picture cannot be written.

    """
    labels = {LAYER: "layers", COMPUTE: "computing", STALL: "waiting"}
    order = [*reversed(trace.lanes), STALL, COMPUTE, LAYER]
    with drawn(path, (14, 6)) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        for y, row in enumerate(order):
            spans = [span for span in trace.spans if span.row == row]
            colors = [_color(row, span.name, i) for i, span in enumerate(spans)]
            top.broken_barh([(s.begin, s.end - s.begin) for s in spans], (y - 0.4, 0.8), facecolors=colors)
        top.set_yticks(range(len(order)), [labels.get(row, f"lane {row - LANE}") for row in order])
        top.set_title(f"{name}: TTFT {trace.stats['ttft_s']:.3f} s, {trace.stats['prompt_tokens']} tokens", loc="left")
        bottom.step([at for at, _ in trace.fill], [size / MiB for _, size in trace.fill], where="post", color=COLORS["expert"])
        bottom.set_ylabel("ring, MiB")
        bottom.set_xlabel("seconds")


def _color(row: int, name: str, index: int) -> str:
    if row == LAYER:
        return ("#d9d9d9", "#bdbdbd")[index % 2]
    return COLORS["waiting for pages"] if row == STALL else COLORS.get(name, "#888888")
