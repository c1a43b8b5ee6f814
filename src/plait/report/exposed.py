"""What of the communication is still exposed: per rank and cause, and what would hide it."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from plait.cluster.units import format_seconds
from plait.program import COMPUTE
from plait.simulate import Cause, Exposure, Timeline, cause_of, exposures

WORTH_A_WARNING = 0.1  # of the step, exposed and hideable
_MOST_ROWS = 8
_SHOWN = 0.0005  # of the step: what rounds to more than nothing
_NAMES = {
    Cause.GRADIENT: "gradient sums",
    Cause.ACTIVATION: "activations",
    Cause.TIED: "tied parameters' sums",
    Cause.OTHERS: "other ranks",
}
Row = tuple[str, ...]


def exposed_rows(timelines: Sequence[Timeline], *, most: int = _MOST_ROWS) -> list[Row]:
    """The table as text, its first row the header; empty where nothing is exposed.

    Ranks that read the same share a row. Of more than `most` rows those with the most exposed are left.
    """
    found = [(timeline, exposures(timeline)) for timeline in timelines]
    causes = [
        cause
        for cause in Cause
        if any(
            own.exposed.get(cause, 0.0) > _SHOWN * timeline.step_seconds for timeline, ranks in found for own in ranks
        )
    ]
    if not causes:
        return []
    rows: list[Row] = [("", "rank", *causes, "hideable")]
    for timeline, ranks in found:
        rows += _rows(timeline, ranks, causes, most)
    return rows


def _rows(timeline: Timeline, ranks: Sequence[Exposure], causes: Sequence[Cause], most: int) -> list[Row]:
    def cells(own: Exposure) -> Row:
        seconds = [*(own.exposed.get(cause, 0.0) for cause in causes), own.total_hideable]
        return tuple(_cell(value, timeline.step_seconds) for value in seconds)

    runs = [(text, list(run)) for text, run in groupby(range(len(ranks)), key=lambda rank: cells(ranks[rank]))]
    kept = sorted(runs, key=lambda run: ranks[run[1][0]].total, reverse=True)[:most]
    rows = [(timeline.source, _span(run), *text) for text, run in runs if (text, run) in kept]
    left = sum(len(run) for _, run in runs) - sum(len(run) for _, run in kept)
    if left:
        rows.append((timeline.source, f"{left} more", *("" for _ in causes), ""))
    return rows


def _cell(seconds: float, step_seconds: float) -> str:
    """
    >>> _cell(0.0125, 0.1), _cell(0.0, 0.1)
    ('12.5 ms 12%', '-')
    """
    share = seconds / step_seconds
    return f"{format_seconds(seconds)} {share:.0%}" if share > _SHOWN else "-"


def _span(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def exposed_table(rows: Sequence[Row]) -> Table:
    """The rows of `exposed_rows` for the terminal."""
    header, *body = rows
    several = len({row[0] for row in body}) > 1
    table = Table(
        title="Exposed communication",
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for index, name in enumerate(header):
        if index or several:
            table.add_column(name, justify="right" if index > 1 else "left", no_wrap=index < 2)
    for row in body:
        table.add_row(*(row if several else row[1:]))
    return table


def exposed_data(own: Exposure) -> dict[str, Any]:
    """Of one rank, for programs that read it."""
    return {
        "exposed_seconds": {str(cause): seconds for cause, seconds in own.exposed.items()},
        "hideable_seconds": {str(cause): seconds for cause, seconds in own.hideable.items() if seconds > 0.0},
    }


def exposed_warning(timeline: Timeline) -> str:
    """A sentence where more than a tenth of the step is exposed and could be hidden on some rank; else empty."""
    ranks = exposures(timeline)
    rank = max(range(len(ranks)), key=lambda r: ranks[r].total_hideable)
    worst = ranks[rank]
    if worst.total_hideable <= WORTH_A_WARNING * timeline.step_seconds:
        return ""
    cause = max(worst.hideable, key=worst.hideable.__getitem__)
    return (
        f"{timeline.source}: rank {rank} waits {format_seconds(worst.total)} of a step of "
        f"{format_seconds(timeline.step_seconds)} for communication, of which {format_seconds(worst.total_hideable)} "
        f"could be hidden, most of it {_NAMES[cause]}: {_why(cause, worst, timeline, rank)}"
    )


def exposed_note(timeline: Timeline) -> str:
    """A sentence where more than a tenth of the step is exposed on some rank and cannot be hidden; else empty."""
    ranks = exposures(timeline)
    rank = max(range(len(ranks)), key=lambda r: _bound(ranks[r])[1])
    cause, seconds = _bound(ranks[rank])
    if seconds <= WORTH_A_WARNING * timeline.step_seconds:
        return ""
    return (
        f"{timeline.source}: {format_seconds(seconds)} of rank {rank}'s wait for {_NAMES[cause]} cannot be hidden: "
        f"{_why_not(cause, ranks[rank])}"
    )


def _bound(own: Exposure) -> tuple[Cause, float]:
    """The cause of most of what is exposed and cannot be hidden, and how long that is."""
    left = {cause: own.exposed.get(cause, 0.0) - seconds for cause, seconds in own.hideable.items()}
    cause = max(left, key=left.__getitem__)
    return cause, left[cause]


def _why(cause: Cause, own: Exposure, timeline: Timeline, rank: int) -> str:
    if cause is Cause.ACTIVATION:
        return (
            "its next micro-batch arrives when it has nothing else to compute. More micro-batches, or a schedule with "
            "more of them under way, let messages run beside computation"
        )
    if own.hidden[cause] <= _SHOWN * timeline.step_seconds:
        return "no sum runs beside a computation, so overlap is off. `--overlap full` hides sums behind computation"
    bucket, since = _longest_wait(cause, timeline, rank)
    computed = max((s.end for s in timeline.spans if s.rank == rank and s.what.op in COMPUTE), default=0.0)
    if since >= computed:
        return (
            f"{bucket} is awaited when everything is computed. `--overlap full` lets sums go on beside the next step's "
            "first forwards (not where gradients are clipped: their norm needs all sums)"
        )
    return (
        f"{bucket} is needed as soon as its gradients are there, and before the sum is. Smaller buckets are summed "
        "sooner"
    )


def _why_not(cause: Cause, own: Exposure) -> str:
    if own.hideable[cause] < own.room[cause]:
        return "such waits fill and empty the pipeline, or no other micro-batch is there to be computed meanwhile"
    return (
        f"they take {format_seconds(own.communication[cause])}, and all that can be computed meanwhile takes "
        f"{format_seconds(own.hidden[cause] + own.room[cause])}"
    )


def _longest_wait(cause: Cause, timeline: Timeline, rank: int) -> tuple[str, float]:
    """The bucket whose sum the rank waits for the longest, and since when."""
    waits = [s for s in timeline.spans if (s.rank, s.lane) == (rank, "wait") and cause_of(s.what) is cause]
    longest = max(waits, key=lambda s: s.end - s.start)
    return f"bucket {longest.what.name}", longest.start
