"""Draws a timeline as one self-contained HTML page."""

from html import escape

from estream.engine.timeline import COMPUTE, LANE, LAYER, STALL
from estream.host.sizes import format_bytes
from estream.report.trace import Span, Trace

COLORS = {
    "attention": "#4c78a8",
    "router": "#b279a2",
    "shared": "#76b7b2",
    "expert": "#59a14f",
    "head": "#edc948",
    "waiting for pages": "#e15759",
    "between": "#bab0ac",
    "pages": "#9ecae9",
    "embedding": "#fdbf6f",
    "checksum": "#756bb1",
}
_WIDTH, _LEFT, _ROW, _FILL = 1240, 90, 22, 90

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1280px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em; margin-bottom: 0 } p { margin: .3em 0 1em; color: #555 }
table { border-collapse: collapse; margin: 1em 0 } td { padding: .15em 1em .15em 0 } td.n { text-align: right }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em }
svg { background: #fafafa; border: 1px solid #ddd } text { font: 12px system-ui, sans-serif; fill: #444 }
"""


def to_html(trace: Trace, name: str) -> str:
    """Return the page's HTML; ``name`` is its title."""
    stats = trace.stats
    ttft = float(stats["ttft_s"])
    rate = stats["bytes_read"] / stats["read_s"] if stats["read_s"] else 0.0
    summary = (
        f"TTFT {ttft:.3f} s for {stats['prompt_tokens']} tokens; read {format_bytes(stats['bytes_read'])} at "
        f"{format_bytes(rate)}/s; peak memory {format_bytes(stats['peak_rss_bytes'])} of {format_bytes(stats['budget_bytes'])}"
    )
    rows = "".join(
        f'<tr><td><span class="key" style="background:{COLORS.get(kind, "#888")}"></span>{escape(kind)}</td>'
        f'<td class="n">{seconds:.3f} s</td><td class="n">{100 * seconds / ttft:.1f} %</td></tr>'
        for kind, seconds in trace.seconds_by_kind().items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(name)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(name)}</h1><p>{summary}</p><table>{rows}</table>{_svg(trace)}"
        "<p>Top to bottom: layers, computing by kind of page, waiting for pages, one row a reader lane, and how full the "
        "arena's ring is. Hover for the page.</p></html>"
    )


def _svg(trace: Trace) -> str:
    order = [LAYER, COMPUTE, STALL, *trace.lanes]
    scale = (_WIDTH - _LEFT - 10) / trace.end
    height = len(order) * _ROW + _FILL + 50
    parts = [f'<svg width="{_WIDTH}" height="{height}" role="img" aria-label="timeline">']
    labels = {LAYER: "layers", COMPUTE: "computing", STALL: "waiting"}
    for index, row in enumerate(order):
        y = 8 + index * _ROW
        parts.append(f'<text x="4" y="{y + 14}">{labels.get(row, f"lane {row - LANE}")}</text>')
        spans = [span for span in trace.spans if span.row == row]
        parts += [_rect(span, i, y, scale) for i, span in enumerate(spans)]
    parts.append(_fill_chart(trace, 8 + len(order) * _ROW + 10, scale))
    for tick in range(11):
        x, anchor = _LEFT + (_WIDTH - _LEFT - 10) * tick / 10, "end" if tick == 10 else "middle"
        parts.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">{trace.end * tick / 10:.2f} s</text>')
    return "".join(parts) + "</svg>"


def _rect(span: Span, index: int, y: int, scale: float) -> str:
    if span.row == LAYER:
        color = ("#d9d9d9", "#bdbdbd")[index % 2]
    else:
        color = COLORS["waiting for pages"] if span.row == STALL else COLORS.get(span.name, "#888")
    # A minimum width keeps short spans visible. It is smaller for waits: many short waits would look like one long wait.
    x, width = _LEFT + span.begin * scale, max((span.end - span.begin) * scale, 0.02 if span.row == STALL else 0.3)
    title = escape(f"{span.label}, {1000 * (span.end - span.begin):.2f} ms")
    place = f'x="{x:.1f}" y="{y}" width="{width:.2f}" height="{_ROW - 4}"'
    return f'<rect {place} fill="{color}"><title>{title}</title></rect>'


def _fill_chart(trace: Trace, y: int, scale: float) -> str:
    most = max((size for _, size in trace.fill), default=0)
    if most == 0:
        return f'<text x="{_LEFT}" y="{y + 20}">every page was in memory, the ring was not used</text>'
    points, last = [f"{_LEFT},{y + _FILL}"], float(y + _FILL)
    for at, size in trace.fill:
        x, top = _LEFT + at * scale, y + _FILL * (1 - size / most)
        points += [f"{x:.1f},{last:.1f}", f"{x:.1f},{top:.1f}"]
        last = top
    points.append(f"{_LEFT + trace.end * scale:.1f},{last:.1f} {_LEFT + trace.end * scale:.1f},{y + _FILL}")
    label = f'<text x="4" y="{y + 12}">ring, up to</text><text x="4" y="{y + 28}">{format_bytes(most)}</text>'
    return f'{label}<polygon points="{" ".join(points)}" fill="#c7e9c0" stroke="#59a14f" stroke-width="0.5"/>'
