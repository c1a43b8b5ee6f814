"""The report of a run: one HTML file that needs nothing else."""

from collections.abc import Mapping, Sequence
from html import escape

from plait.report.svg import timelines_svg
from plait.simulate import Timeline

_STYLE = """
:root { color-scheme: light dark; }
body { font-family: system-ui, sans-serif; max-width: 1120px; margin: 2rem auto; padding: 0 1rem; line-height: 1.45;
       background: #fff; color: #1f2328; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; }
td, th { padding: .3rem .9rem .3rem 0; text-align: left; font-variant-numeric: tabular-nums; }
th { font-weight: 600; border-bottom: 1px solid #d0d7de; } td { border-bottom: 1px solid #d0d7de55; }
.card { background: #f6f8fa; border-radius: 8px; padding: 1rem; overflow-x: auto; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3; } .card { background: #f6f8fa; } }
"""


def run_report(
    title: str,
    *,
    facts: Mapping[str, str],
    timelines: Sequence[Timeline],
    stages: Sequence[Sequence[str]],
    losses: Sequence[float],
    reference_losses: Sequence[float] = (),
    exposed: Sequence[Sequence[str]] = (),
) -> str:
    """`stages` and `exposed` are tables, their first rows the headers."""
    return "".join(
        [
            "<!doctype html><html lang='en'><meta charset='utf-8'>",
            f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1>",
            "<table>"
            + "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts.items())
            + "</table>",
            "<h2>One step, predicted and measured on one axis</h2>",
            f"<div class='card'>{timelines_svg(timelines)}</div>",
            "<h2>Stages</h2>" + _table(stages),
            "<h2>Exposed communication</h2>" + _table(exposed) if exposed else "",
            f"<h2>Loss</h2><div class='card'>{_curve(losses, reference_losses)}</div></html>",
        ]
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    header, *body = rows
    return (
        "<table><tr>"
        + "".join(f"<th>{escape(cell)}</th>" for cell in header)
        + "</tr>"
        + "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
        + "</table>"
    )


def _curve(losses: Sequence[float], reference: Sequence[float]) -> str:
    """The loss over steps; where one process was run too, its losses as rings around the points."""
    if not losses:
        return "no step was run"
    low, high = min(losses), max(losses)
    span = (high - low) or 1.0

    def point(step: int, loss: float) -> tuple[float, float]:
        return 60 + step / max(len(losses) - 1, 1) * 960, 190 - (loss - low) / span * 160

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (point(s, v) for s, v in enumerate(losses)))
    rings = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="#e2574c"/>'
        for x, y in (point(s, v) for s, v in enumerate(reference))
    )
    note = (
        '<text x="700" y="20" fill="#57606a" font-size="12">line: this run, rings: one process</text>'
        if reference
        else ""
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1040 215" font-family="system-ui, sans-serif">'
        f'<polyline points="{line}" fill="none" stroke="#4c8bf5" stroke-width="2"/>{rings}{note}'
        f'<text x="4" y="34" font-size="12" fill="#57606a">{high:.3f}</text>'
        f'<text x="4" y="194" font-size="12" fill="#57606a">{low:.3f}</text>'
        f'<text x="60" y="210" font-size="12" fill="#57606a">step 0</text>'
        f'<text x="1020" y="210" text-anchor="end" font-size="12" fill="#57606a">step {len(losses) - 1}</text></svg>'
    )
