"""A timeline as SVG, for the HTML report and the README."""

from collections.abc import Sequence
from html import escape

from plait.cluster.units import format_seconds
from plait.program import Op
from plait.simulate import Span, Timeline

_WIDTH, _LEFT, _ROW, _GAP = 1040, 92, 30, 5
_COLOURS = {Op.F: "#4c8bf5", Op.B: "#34a36b", Op.I: "#2f9e8f", Op.W: "#8bc34a", Op.STEP: "#b265c9"}
_WAIT = "#e2574c"


def timelines_svg(timelines: Sequence[Timeline]) -> str:
    """Timelines above one another on one time axis."""
    end = max(timeline.step_seconds for timeline in timelines)
    parts: list[str] = []
    y = 26
    for timeline in timelines:
        title = f"{timeline.source} step: {format_seconds(timeline.step_seconds)}"
        parts.append(f'<text x="{_LEFT}" y="{y - 8}" class="title">{escape(title)}</text>')
        for rank in range(timeline.num_ranks):
            parts.append(f'<text x="8" y="{y + 20}" class="rank">rank {rank}</text>')
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT}" height="{_ROW}" class="idle"/>')
            own = [span for span in timeline.spans if span.rank == rank]
            parts += [
                _block(span, y, end) for span in own if span.lane == "wait" and span.end - span.start > end / 2000
            ]
            parts += [_block(span, y, end) for span in own if span.lane == "compute"]
            y += _ROW + _GAP
        y += 34
    parts.append(_axis(end, y - 34))
    parts.append(_legend(y + 6))
    height = y + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 12} {height}" '
        'font-family="system-ui, sans-serif">'
        "<style>.title{font-size:14px;font-weight:600;fill:#57606a}.rank{font-size:13px;fill:#57606a}"
        ".idle{fill:#8c959f22}.label{font-size:11px;fill:#fff;text-anchor:middle}.tick{font-size:11px;fill:#57606a}</style>"
        + "".join(parts)
        + "</svg>"
    )


def _x(seconds: float, end: float) -> float:
    return _LEFT + seconds / end * (_WIDTH - _LEFT)


def _block(span: Span, y: int, end: float) -> str:
    x, width = _x(span.start, end), max(_x(span.end, end) - _x(span.start, end), 0.6)
    if span.lane == "wait":
        return f'<rect x="{x:.1f}" y="{y + _ROW - 5}" width="{width:.1f}" height="5" fill="{_WAIT}"/>'
    tooltip = f"<title>{escape(span.label)}: {format_seconds(span.end - span.start)}</title>"
    block = (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW}" rx="2" fill="{_COLOURS[span.what.op]}" '
        f'stroke="#fff" stroke-width="0.5">{tooltip}</rect>'
    )
    if span.what.micro_batch >= 0 and width > 14:
        text = f"{span.what.op}{span.what.micro_batch}"
        block += f'<text x="{x + width / 2:.1f}" y="{y + 19}" class="label">{text}</text>'
    return block


def _axis(end: float, y: int) -> str:
    ticks = []
    for tenth in range(0, 11, 2):
        x = _x(end * tenth / 10, end)
        anchor = "end" if tenth == 10 else "middle"
        ticks.append(
            f'<text x="{x:.0f}" y="{y + 14}" class="tick" text-anchor="{anchor}">'
            f"{format_seconds(end * tenth / 10)}</text>"
        )
    return "".join(ticks)


def _legend(y: int) -> str:
    entries = [
        ("forward", _COLOURS[Op.F]),
        ("backward", _COLOURS[Op.B]),
        ("optimiser", _COLOURS[Op.STEP]),
        ("data on the wire", _WAIT),
    ]
    parts, x = [], _LEFT
    for label, colour in entries:
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 10}" class="tick">{label}</text>')
        x += 36 + 7 * len(label)
    return "".join(parts)
