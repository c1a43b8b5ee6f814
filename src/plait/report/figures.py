"""Numbers as people read them, and the tables made of them."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from plait.cluster.units import format_bytes, format_seconds
from plait.graph import Graph
from plait.program import Op
from plait.search import Answer
from plait.simulate import Timeline


def plan_table(answer: Answer, *, most: int = 6) -> Table:
    """The best plans, one per row."""
    # Narrow on purpose: in eighty columns every number keeps its unit.
    table = Table(
        title=escape(f"Plans for {answer.best.plan.model}"),
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in ("", "stages", "micro-\nbatches", "schedule"):
        table.add_column(name, no_wrap=True)
    for name in ("step", "over\nbound", "bubble", "comm.", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, candidate in enumerate(answer.candidates[:most]):
        plan, timeline = candidate.plan, candidate.timeline
        table.add_row(
            "best" if number == 0 else str(number + 1),
            plan.layout(),
            str(plan.micro_batches),
            plan.schedule,
            format_seconds(timeline.step_seconds),
            f"{timeline.step_seconds / answer.bound_seconds - 1:+.0%}",
            share(timeline, "bubble"),
            share(timeline, "exposed_communication"),
            format_bytes(max(memory.peak for memory in candidate.memory)),
        )
    return table


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
