"""A timeline in the terminal: one row per rank, time to the right, micro-batch numbers in the blocks."""

from rich.text import Text

from plait.program import Op
from plait.simulate import Span, Timeline

_STYLES = {
    Op.F: "black on bright_blue",
    Op.B: "black on bright_green",
    Op.I: "black on green",
    Op.W: "black on bright_cyan",
    Op.STEP: "black on bright_magenta",
}
_WAIT = "red"
_IDLE = "bright_black"


def gantt(timeline: Timeline, *, width: int = 100, until: float | None = None) -> Text:
    """`until` puts several timelines on one axis."""
    end = until or timeline.step_seconds
    text = Text()
    for rank in range(timeline.num_ranks):
        text.append(f"rank {rank} ", style="bold")
        text.append(_row([span for span in timeline.spans if span.rank == rank], width, end))
        text.append("\n")
    return text


def legend() -> Text:
    text = Text("       ")
    for label, style in (("F forward", _STYLES[Op.F]), ("B backward", _STYLES[Op.B]), ("optimiser", _STYLES[Op.STEP])):
        text.append(f" {label} ", style=style)
        text.append("  ")
    text.append("~ waiting for data   ", style=_WAIT)
    text.append("· idle", style=_IDLE)
    return text


def _row(spans: list[Span], width: int, end: float) -> Text:
    cells: list[tuple[str, str]] = [("·", _IDLE)] * width
    for lane in ("wait", "compute"):  # computation is drawn over waiting
        for span in spans:
            if span.lane == lane:
                _draw(cells, span, width, end)
    row = Text()
    for character, style in cells:
        row.append(character, style=style)
    return row


def _draw(cells: list[tuple[str, str]], span: Span, width: int, end: float) -> None:
    first = min(int(span.start / end * width), width - 1)
    last = min(max(int(span.end / end * width + 0.5), first + 1), width)
    if span.lane == "wait":
        if span.end - span.start < end / width / 2:
            return
        for column in range(first, last):
            cells[column] = ("~", _WAIT)
        return
    style = _STYLES[span.what.op]
    label = str(span.what.micro_batch) if span.what.micro_batch >= 0 else ""
    for column in range(first, last):
        offset = column - first
        cells[column] = (label[offset] if offset < len(label) and last - first >= len(label) else " ", style)
