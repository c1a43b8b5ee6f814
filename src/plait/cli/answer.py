"""An answer told: tables and sentences for people, one object for programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from plait.cli.comparison import NO_COMPARISON, Comparison
from plait.cli.exposed import show_exposed
from plait.cli.prepare import Prepared
from plait.cli.profiled import Profiled
from plait.cluster.units import format_seconds
from plait.graph import Graph
from plait.report import baseline_table, exposed_data, gantt, legend, plan_table, what_if_table
from plait.report.plans import Changed, distinct, idle_devices, idle_words, layout_words, over, ratio
from plait.report.reasons import Reason, Step, bottleneck, why_slower
from plait.search import Answer, Candidate
from plait.search.bounds import Bound
from plait.simulate import exposures

_RIVALS = 5  # next best plans that are explained


@dataclass(frozen=True)
class Told:
    """All that was asked for: the plans, planners compared with, changed clusters, and whether to say why."""

    answer: Answer
    comparison: Comparison = NO_COMPARISON
    changed: Sequence[Changed] = ()
    explained: bool = False


def show(console: Console, told: Told, prepared: Prepared | Profiled) -> None:
    answer, best = told.answer, told.answer.best
    console.print(plan_table(answer, width=console.width))
    _show_bounds(console, answer)
    if idle := idle_words(best.plan):
        console.print(idle, highlight=False)
    sources = ", ".join(f"{kind}: {source}" for kind, source in prepared.costs.source.items())
    console.print(
        f"{len(prepared.graph.atoms)} atoms · costs {escape(sources)} · planned in "
        f"{format_seconds(answer.planning_seconds)}",
        style="dim",
        highlight=False,
    )
    console.print(gantt(best.timeline, width=console.width), end="")
    console.print(legend([best.timeline]))
    show_exposed(console, [best.timeline])
    if told.comparison.judged:
        console.print()
        _show_comparison(console, best, told.comparison)
    if told.explained:
        console.print()
        _show_reasons(console, told)
    if told.changed:
        console.print()
        console.print(what_if_table(answer, told.changed, width=console.width))
        for changed in told.changed:
            if changed.answer is None:
                console.print(f"{escape(changed.change)}: {escape(changed.why)}", highlight=False)


def _show_bounds(console: Console, answer: Answer) -> None:
    own = answer.best.bound
    console.print(
        f"over any: no plan at all can beat [bold]{format_seconds(answer.bound_seconds)}[/], by "
        f"{escape(_argument(answer.bound))}",
        highlight=False,
    )
    if own is not None:
        console.print(
            f"over own: with the best plan's stages, no order of micro-batches can beat "
            f"{format_seconds(own.seconds)}, by {escape(_argument(own))}",
            highlight=False,
        )


def _argument(bound: Bound) -> str:
    return f"{bound.name} at {bound.where}" if bound.where else bound.name


def _show_comparison(console: Console, best: Candidate, comparison: Comparison) -> None:
    console.print(baseline_table(best, comparison.judged, comparison.unfit, width=console.width))
    for name, found in comparison.judged.items():
        if found.step_seconds is None and name not in comparison.unfit:
            console.print(f"{name}: {escape(found.why)}", highlight=False)
        if found.step_seconds is not None and over(found.step_seconds, best.step_seconds).startswith("-"):
            console.print(f"{name} found a faster plan: give the search more time with --budget", highlight=False)


def _show_reasons(console: Console, told: Told) -> None:
    console.print(f"[bold]Bottleneck[/]: {escape(_bottleneck(told).text)}.", highlight=False)
    for name, reason in _rivals(told).items():
        console.print(f"[bold]{escape(name)}[/]: {escape(reason.text)}.", highlight=False)
    if rejected := told.answer.rejected:
        name, why = rejected[0]
        console.print(f"{len(rejected)} more cannot run, the first of them {name}: {escape(why)}", highlight=False)


def _bottleneck(told: Told) -> Reason:
    best = told.answer.best
    return bottleneck(Step(best.plan, best.timeline))


def _rivals(told: Told) -> dict[str, Reason]:
    """By name, why each of the next best plans and of the planners compared with loses."""
    best = Step(told.answer.best.plan, told.answer.best.timeline)
    found: dict[str, Reason] = {}
    for number, rival in enumerate(distinct(told.answer)[1 : _RIVALS + 1], start=2):
        name = f"{number} ({layout_words(rival.plan)}, {rival.plan.schedule})"
        found[name] = _why(Step(rival.plan, rival.timeline), best)
    for name, judged in told.comparison.judged.items():
        if judged.plan is not None and judged.timeline is not None:
            found[name] = _why(Step(judged.plan, judged.timeline), best)
        else:
            found[name] = told.comparison.unfit.get(name) or Reason("memory", judged.why.rstrip("."))
    return found


def _why(rival: Step, best: Step) -> Reason:
    """The reason, with how much slower in front."""
    reason = why_slower(rival, best)
    if reason.cause == "nothing":
        return Reason("nothing", f"{format_seconds(rival.seconds)}, {ratio(rival.seconds, best.seconds)}")
    return Reason(reason.cause, f"{over(rival.seconds, best.seconds)}: {reason.text}")


def as_data(told: Told, graph: Graph) -> dict[str, Any]:
    """The object that --json prints."""
    answer, best, plan = told.answer, told.answer.best, told.answer.best.plan
    data = {
        "step_seconds": best.step_seconds,
        "bound_seconds": answer.bound_seconds,
        "bound": _bound_data(answer.bound),
        "partition_bound_seconds": best.bound.seconds if best.bound else None,
        "partition_bound": _bound_data(best.bound) if best.bound else None,
        "planning_seconds": answer.planning_seconds,
        "batch_size": plan.batch_size,
        "micro_batches": plan.micro_batches,
        "schedule": plan.schedule,
        "sync": plan.sync,
        "overlap": plan.overlap,
        "stages": [_stage_data(best, graph, index) for index in range(len(plan.stages))],
        "idle_devices": idle_devices(plan),
        "exposed": [exposed_data(rank) for rank in exposures(best.timeline)],
        "baselines": {name: judged.step_seconds for name, judged in told.comparison.judged.items()},
        "what_if": [_changed_data(changed, best) for changed in told.changed],
    }
    if told.explained:
        data["bottleneck"] = _bottleneck(told).text
        data["reasons"] = {name: reason.text for name, reason in _rivals(told).items()}
    return data


def _bound_data(bound: Bound) -> dict[str, str]:
    return {"name": bound.name, "where": bound.where}


def _stage_data(best: Candidate, graph: Graph, index: int) -> dict[str, Any]:
    plan, stage = best.plan, best.plan.stages[index]
    return {
        "atoms": [atom.name for atom in graph.atoms[stage.start : stage.end]],
        "devices": [plan.cluster.devices[device].name for device in stage.devices],
        "data": stage.replicas,
        "tensor": stage.tensor,
        "split": dict(stage.split),
        "recompute": stage.recompute,
        "peak_memory_bytes": max(best.memory[rank].peak for rank in plan.stage_ranks(index)),
    }


def _changed_data(changed: Changed, before: Candidate) -> dict[str, Any]:
    if changed.answer is None:
        return {"change": changed.change, "step_seconds": None, "why": changed.why}
    answer = changed.answer
    return {
        "change": changed.change,
        "step_seconds": answer.best.step_seconds,
        "times_faster": before.step_seconds / answer.best.step_seconds,
        "bound_seconds": answer.bound_seconds,
        "bound": _bound_data(answer.bound),
        "micro_batches": answer.best.plan.micro_batches,
        "schedule": answer.best.plan.schedule,
        "layout": answer.best.plan.layout(),
    }
