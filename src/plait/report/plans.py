"""Plans side by side: the best ones found, those of the classical planners, those for other clusters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from plait.cluster.units import format_bytes, format_seconds
from plait.plan import Plan
from plait.program import RankMemory
from plait.report.figures import share
from plait.report.reasons import Reason
from plait.search import Answer, Candidate
from plait.search.baselines import Judged

_WIDE = 100  # columns from which memory is told in bytes too
_MOST = 6


@dataclass(frozen=True)
class Changed:
    """The answer for a changed cluster, or why there is none."""

    change: str
    answer: Answer | None
    why: str = ""


def distinct(answer: Answer) -> list[Candidate]:
    """The best of those that a table could not tell apart, best first."""
    found: dict[tuple[str, ...], Candidate] = {}
    for candidate in answer.candidates:
        found.setdefault(_choices(candidate.plan), candidate)
    return list(found.values())


def plan_table(answer: Answer, *, width: int = 80, most: int = _MOST) -> Table:
    """The best distinct plans, one per row; nothing is cut short in `width` of 80 columns or more."""
    table = _table(f"Plans for {answer.best.plan.model}", width)
    _add_choices(table, "")
    for name in ("step", "over\nany", "over\nown", "bub-\nble", "comm.", "mem-\nory"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, candidate in enumerate(distinct(answer)[:most]):
        plan, seconds = candidate.plan, candidate.step_seconds
        table.add_row(
            "best" if number == 0 else str(number + 1),
            *_choices(plan),
            format_seconds(seconds),
            over(seconds, answer.bound_seconds),
            over(seconds, candidate.bound.seconds) if candidate.bound else "",
            share(candidate.timeline, "bubble"),
            share(candidate.timeline, "exposed_communication"),
            memory_words(plan, candidate.memory) if width >= _WIDE else f"{fullest(plan, candidate.memory)[1]:.0%}",
            style="bold" if number == 0 else "",
        )
    return table


def baseline_table(
    best: Candidate, judged: Mapping[str, Judged], unfit: Mapping[str, Reason], *, width: int = 80
) -> Table:
    """What each classical planner comes to on the same model, cluster and batch."""
    table = _table("Against classical planners, by the same simulator", width)
    _add_choices(table, "planner")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("Plait is", overflow="fold")
    for name, found in judged.items():
        choices = _choices(found.plan) if found.plan else ("", "", "", "")
        if found.step_seconds is not None:
            table.add_row(
                name, *choices, format_seconds(found.step_seconds), ratio(found.step_seconds, best.step_seconds)
            )
        else:
            table.add_row(name, *choices, "-", escape(unfit[name].text if name in unfit else "no plan (see below)"))
    return table


def what_if_table(before: Answer, after: Sequence[Changed], *, width: int = 80) -> Table:
    """Step and bound on each changed cluster, with how much faster the step is."""
    table = _table(f"What if ({before.best.plan.cluster.name}, batch {before.best.plan.batch_size})", width)
    table.add_column("cluster", overflow="fold")
    for name in ("step", "times\nfaster", "bound", "over\nbound"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("stages", "micro\nbatch", "schedule"):
        table.add_column(name, no_wrap=True)
    for changed in (Changed("as it is", before), *after):
        found = changed.answer
        if found is None:
            table.add_row(escape(changed.change), "-", "", "", "", "none", "", "")
            continue
        plan, seconds = found.best.plan, found.best.step_seconds
        table.add_row(
            escape(changed.change),
            format_seconds(seconds),
            f"{before.best.step_seconds / seconds:.2f}x",
            format_seconds(found.bound_seconds),
            over(seconds, found.bound_seconds),
            *_choices(plan)[:3],
        )
    return table


def over(seconds: float, bound: float) -> str:
    """
    >>> over(1.5, 1.0), over(1.0312, 1.0), over(0.99999, 1.0)
    ('+50%', '+3.1%', '0.0%')
    """
    gap = seconds / bound - 1
    if abs(gap) < 0.0005:
        return "0.0%"  # a step and its bound are sums in different orders, so their last digits differ
    return f"{gap:+.1%}" if gap < 0.0995 else f"{gap:+.0%}"


def ratio(other: float, own: float) -> str:
    """
    >>> ratio(1.5, 1.0), ratio(1.0, 2.0), ratio(1.0, 1.0)
    ('1.50x as fast', '0.50x as fast', 'as fast')
    """
    times = f"{other / own:.2f}"
    return "as fast" if times == "1.00" else f"{times}x as fast"


def layout_words(plan: Plan) -> str:
    """`2x1+3x2`: stages on one device each twice, then three times on two; `16 on 8x1`: two stages on every device.

    `2x3x4`: twice on three groups of four devices that share each layer.
    """
    runs = "+".join(f"{len(list(run))}x{grid}" for grid, run in groupby(plan.grids))
    layout = min(runs, plan.layout(), key=len)
    return layout if len(plan.stages) == len(plan.positions) else f"{len(plan.stages)} on {layout}"


def recompute_words(plan: Plan) -> str:
    """Which stages compute their forward again in the backward: no, all, or how many."""
    count = sum(stage.recompute for stage in plan.stages)
    return {0: "no", len(plan.stages): "all"}.get(count, f"{count}/{len(plan.stages)}")


def fullest(plan: Plan, memory: Iterable[RankMemory]) -> tuple[int, float]:
    """Peak bytes, and their share of the device, where that share is the largest."""
    peaks = [
        (use.peak, use.peak / plan.cluster.devices[device].memory_bytes)
        for device, use in zip(plan.devices, memory, strict=True)
    ]
    return max(peaks, key=lambda pair: pair[1])


def memory_words(plan: Plan, memory: Iterable[RankMemory]) -> str:
    peak, part = fullest(plan, memory)
    return f"{format_bytes(peak)} {part:4.0%}"


def idle_devices(plan: Plan) -> list[str]:
    """Names of the devices that the plan leaves alone."""
    return [device.name for index, device in enumerate(plan.cluster.devices) if index not in plan.rank_of_device]


def idle_words(plan: Plan) -> str:
    """A sentence about them; empty where there are none."""
    idle, total = len(idle_devices(plan)), len(plan.cluster.devices)
    if not idle:
        return ""
    return (
        f"{idle} of {total} devices {'is' if idle == 1 else 'are'} left idle: no faster plan was found that uses them"
    )


def _choices(plan: Plan) -> tuple[str, str, str, str]:
    return layout_words(plan), str(plan.micro_batches), plan.schedule, recompute_words(plan)


def _add_choices(table: Table, first: str) -> None:
    for name in (first, "stages", "micro\nbatch", "schedule", "re-\ncomp."):
        table.add_column(name, no_wrap=True)


def _table(title: str, width: int) -> Table:
    # In eighty columns every number keeps its unit, at the cost of the space between.
    return Table(
        title=escape(title),
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1 if width >= _WIDE else 0),
        collapse_padding=True,
    )
