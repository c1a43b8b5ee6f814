"""Where the time of a timeline goes: shares of a step, seconds per stage."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from plait.cluster.units import format_seconds
from plait.graph import Graph
from plait.program import Op
from plait.simulate import Timeline


def share(timeline: Timeline, part: str) -> str:
    """A part of the step, as the mean share over ranks."""
    total = sum(getattr(rank, part) for rank in timeline.ranks)
    return f"{total / (timeline.num_ranks * timeline.step_seconds):.0%}"


def stage_table(graph: Graph, predicted: Timeline, measured: Timeline | None, stages: Sequence[int]) -> Table:
    """Forward and backward seconds of one micro-batch per stage: predicted next to measured."""
    title = "Seconds per micro-batch on each stage, predicted | measured"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("stage")
    table.add_column("starts at", no_wrap=True, max_width=30)
    for name in ("F pred.", "F meas.", "B pred.", "B meas."):
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    for index, start in enumerate(stages):
        cells = []
        for op in (Op.F, Op.B):
            for timeline in (predicted, measured):
                seconds = mean_seconds(timeline, op, index) if timeline is not None else None
                cells.append(format_seconds(seconds) if seconds is not None else "-")
        table.add_row(str(index), escape(graph.atoms[start].name), *cells)
    return table


def mean_seconds(timeline: Timeline, op: Op, stage: int) -> float | None:
    found = [
        s.end - s.start for s in timeline.spans if s.lane == "compute" and s.what.op is op and s.what.stage == stage
    ]
    return sum(found) / len(found) if found else None
