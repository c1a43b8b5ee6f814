"""A timeline in the terminal: one row per rank, time to the right, micro-batch numbers in the blocks.

Colours tell what is computed, and in two shades which stage where a rank has several. The same is told without colours
by what a block is filled with, which on a coloured background has the background's colour.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from rich.text import Text

from plait.program import COMPUTE, Op
from plait.simulate import Span, Timeline

MOST_ROWS = 16
_READABLE = 3  # columns of a block that a number and its end can be told apart in


class _Look(NamedTuple):
    label: str
    fill: str
    shades: tuple[str, str]  # of a rank's first, third, … stage, and of the others


_LOOKS = {
    Op.F: _Look("forward", ">", ("bright_blue", "blue")),
    Op.B: _Look("backward", "<", ("bright_green", "green")),
    Op.I: _Look("input half", "i", ("bright_yellow", "yellow")),
    Op.W: _Look("weight half", "w", ("bright_cyan", "cyan")),
    Op.STEP: _Look("optimiser", "=", ("bright_magenta", "magenta")),
}
_WAIT, _WAITING = "red", "~"
_IDLE, _IDLING = "bright_black", "·"


def gantt(timeline: Timeline, *, width: int = 100, until: float | None = None, most_rows: int = MOST_ROWS) -> Text:
    """At most `width` columns and `most_rows` ranks; `until` puts several timelines on one axis.

    Of more ranks, the first of those that hold the same stages is shown.
    """
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans[span.rank].append(span)
    rows = _rows(timeline.num_ranks, spans, most_rows)
    names = [_name(row) for row in rows]
    margin = max(map(len, names)) + 1
    axis = _Axis(until or timeline.step_seconds, max(width - margin, 10))
    numbered = _readable([span for row in rows if row for span in spans[row[0]]], axis)
    text = Text()
    for row, name in zip(rows, names, strict=True):
        text.append(name.ljust(margin), style="bold")
        text.append(_drawn(spans[row[0]], axis, numbered) if row else Text())
        text.append("\n")
    return text


def legend(timelines: Sequence[Timeline]) -> Text:
    """What there is to see in them."""
    there = {span.what.op for timeline in timelines for span in timeline.spans if span.lane == "compute"}
    text = Text()
    for op, look in _LOOKS.items():
        if op in there:
            text.append(f" {look.fill} {look.label} ", style=f"black on {look.shades[0]}")
            text.append(" ")
    text.append(f"{_WAITING} waiting  ", style=_WAIT)
    text.append(f"{_IDLING} idle", style=_IDLE)
    return text


class _Axis(NamedTuple):
    seconds: float
    columns: int

    def at(self, seconds: float) -> float:
        return seconds / self.seconds * self.columns


def _rows(num_ranks: int, spans: Mapping[int, Sequence[Span]], most: int) -> list[range]:
    """Ranks by the row they share; an empty range stands for what is left out in the middle."""
    rows = [range(rank, rank + 1) for rank in range(num_ranks)]
    if len(rows) > most:
        rows = []
        for rank in range(num_ranks):
            if rows and _stages(spans[rank]) == _stages(spans[rows[-1].start]):
                rows[-1] = range(rows[-1].start, rank + 1)
            else:
                rows.append(range(rank, rank + 1))
    if len(rows) > most:
        rows = [*rows[: most // 2], range(0), *rows[-(most - most // 2) :]]
    return rows


def _name(row: range) -> str:
    if not row:
        return "   ⋮"
    return f"rank {row[0]}" if len(row) == 1 else f"rank {row[0]}-{row[-1]}"


def _stages(spans: Sequence[Span]) -> list[int]:
    return sorted({span.what.stage for span in spans if span.what.op in COMPUTE and span.lane == "compute"})


def _readable(spans: Sequence[Span], axis: _Axis) -> bool:
    """Are most blocks wide enough for a number?"""
    widths = [axis.at(span.end - span.start) for span in spans if span.what.op in COMPUTE and span.lane == "compute"]
    return bool(widths) and median(widths) >= _READABLE


def _drawn(spans: Sequence[Span], axis: _Axis, numbered: bool) -> Text:
    stages = _stages(spans)
    cells = [(_IDLING, _IDLE)] * axis.columns
    for lane in ("wait", "compute"):  # computation is drawn over waiting
        for span in spans:
            if span.lane == lane == "wait":
                _draw_wait(cells, span, axis)
            elif span.lane == lane:
                shade = stages.index(span.what.stage) % 2 if span.what.stage in stages else 0
                _draw(cells, span, axis, shade, numbered)
    row = Text()
    for character, style in cells:
        row.append(character, style=style)
    return row


def _draw_wait(cells: list[tuple[str, str]], span: Span, axis: _Axis) -> None:
    if axis.at(span.end - span.start) >= 0.5:
        for column in range(*_columns(span, axis)):
            cells[column] = (_WAITING, _WAIT)


def _draw(cells: list[tuple[str, str]], span: Span, axis: _Axis, shade: int, numbered: bool) -> None:
    first, last = _columns(span, axis)
    look = _LOOKS[span.what.op]
    colour = look.shades[shade]
    label = str(span.what.micro_batch) if numbered and span.what.micro_batch >= 0 else ""
    if len(label) > last - first:
        label = ""
    for column in range(first, last):
        offset = column - first
        if offset < len(label):
            cells[column] = (label[offset], f"black on {colour}")
        else:
            cells[column] = (look.fill, f"{colour} on {colour}")


def _columns(span: Span, axis: _Axis) -> tuple[int, int]:
    """First column and the one behind the last; at least one, however short the span."""
    first = min(int(axis.at(span.start)), axis.columns - 1)
    return first, min(max(int(axis.at(span.end) + 0.5), first + 1), axis.columns)
