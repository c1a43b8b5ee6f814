"""After a run: predicted against measured, equality with one process, trace and report."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from plait.cli.exposed import show_exposed
from plait.cli.prepare import Prepared
from plait.cluster.units import format_bytes, format_seconds
from plait.graph import build_graph
from plait.plan import Plan, micro_batch_sizes
from plait.program import Op, compile_program
from plait.report import exposed_rows, gantt, legend, mean_seconds, run_report, share, stage_table
from plait.run.batch import arranged
from plait.run.materialise import load_weights
from plait.run.reference import OneDevice
from plait.run.session import RunRecord
from plait.run.settings import Settings
from plait.run.trainer import device_of
from plait.run.worker import build_model, job_batches
from plait.search import Candidate
from plait.simulate import Timeline, chrome_trace

_COMPARED_STEPS = 10


def compare_with_one_process(
    console: Console, prepared: Prepared, settings: Settings, plan: Plan, record: RunRecord
) -> list[float]:
    """Trains the first steps again in this one process and prints how far the losses are apart."""
    steps = min(len(record.losses), _COMPARED_STEPS)
    device = device_of(plan)
    module = build_model(prepared.job, settings)
    model = build_graph(module, prepared.example, loss=prepared.job.loss, name=prepared.job.name)
    if settings.weights is not None:
        load_weights(model, settings.weights)
    one = OneDevice(model, prepared.job.optimizer, seed=settings.seed, clip_norm=settings.clip_norm, device=device)
    batches = job_batches(prepared.job, settings)
    if settings.load is not None:
        one.load(settings.load)
        for _ in range(one.steps):
            next(batches)
    sizes = micro_batch_sizes(plan.batch_size, plan.micro_batches, plan.most_replicas)
    losses = [one.step(arranged(next(batches), plan.batch), sizes) for _ in range(steps)]
    worst = largest_loss_difference(record.losses, losses)
    verdict = "[green]equal[/]" if worst < 1e-4 else "[red]different[/]"
    console.print(f"one process, first {steps} steps: losses {verdict} (largest relative difference {worst:.1e})")
    return losses


def largest_loss_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference over the steps both made; infinite where a loss is not a number."""
    differences = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(found, expected, strict=False)]
    return max(math.inf if math.isnan(difference) else difference for difference in differences)


def show_outcome(console: Console, prepared: Prepared, candidate: Candidate, record: RunRecord) -> None:
    plan = candidate.plan
    predicted = candidate.timeline
    measured = _measured(prepared, plan, record)
    settled = record.settled_seconds
    console.print(
        f"step time: predicted [bold]{format_seconds(predicted.step_seconds)}[/], measured [bold]"
        f"{format_seconds(record.step_seconds)}[/] (median of {len(settled)}, {format_seconds(min(settled))} to "
        f"{format_seconds(max(settled))}): {predicted.step_seconds / record.step_seconds - 1:+.1%}"
    )
    console.print(f"loss {record.losses[0]:.4f} → {record.losses[-1]:.4f} over {len(record.losses)} steps")
    console.print(stage_table(prepared.model.graph, predicted, measured, [stage.start for stage in plan.stages]))
    show_timelines(console, [timeline for timeline in (predicted, measured) if timeline is not None])


def show_timelines(console: Console, timelines: Sequence[Timeline]) -> None:
    """Above one another on one axis, each with where its time goes."""
    end = max(timeline.step_seconds for timeline in timelines)
    for timeline in timelines:
        console.print(
            f"{timeline.source}: bubble {share(timeline, 'bubble')}, exposed communication "
            f"{share(timeline, 'exposed_communication')}"
        )
        console.print(gantt(timeline, width=console.width, until=end), end="")
    console.print(legend(timelines))
    show_exposed(console, timelines)


def write_outcome(
    console: Console, prepared: Prepared, candidate: Candidate, record: RunRecord, reference: list[float], out: Path
) -> None:
    measured = _measured(prepared, candidate.plan, record)
    timelines = [t for t in (candidate.timeline, measured) if t is not None]
    (out / "trace.json").write_text(json.dumps(chrome_trace(timelines)))
    (out / "timelines.json").write_text(json.dumps([t.to_dict() for t in timelines]))
    record.save(out / "run.json")
    (out / "report.html").write_text(html_report(prepared, candidate, record, timelines, reference))
    console.print(
        f"wrote [bold]{out}/report.html[/], [bold]trace.json[/] (open it in ui.perfetto.dev), plan.json, run.json"
    )


def html_report(
    prepared: Prepared, candidate: Candidate, record: RunRecord, timelines: list[Timeline], reference: list[float]
) -> str:
    plan = candidate.plan
    facts = {
        "job": plan.model,
        "cluster": f"{plan.cluster.name}, {plan.num_ranks} of {len(plan.cluster.devices)} devices used",
        "plan": f"{plan.layout()} (stages x replicas), batch {plan.batch_size} in {plan.micro_batches} micro-batches, "
        f"{plan.schedule}",
        "step time": f"predicted {format_seconds(candidate.timeline.step_seconds)}, measured "
        f"{format_seconds(record.step_seconds)}",
        "loss": f"{record.losses[0]:.4f} to {record.losses[-1]:.4f} in {len(record.losses)} steps",
        "memory predicted": ", ".join(f"rank {r}: {format_bytes(m.peak)}" for r, m in enumerate(candidate.memory)),
        "processes, PyTorch included": ", ".join(
            f"rank {r}: {format_bytes(b)}" for r, b in sorted(record.memory_bytes.items())
        ),
    }
    if reference:
        worst = largest_loss_difference(record.losses, reference)
        facts["one process"] = f"first {len(reference)} losses, largest relative difference {worst:.1e}"
    rows = [
        ["stage", "starts at", "devices", *(f"{t.source} {op}" for op in ("forward", "backward") for t in timelines)]
    ]
    for index, stage in enumerate(plan.stages):
        seconds = [mean_seconds(t, op, index) for op in (Op.F, Op.B) for t in timelines]
        rows.append(
            [
                str(index),
                prepared.model.graph.atoms[stage.start].name,
                ", ".join(plan.cluster.devices[d].name for d in stage.devices),
                *(format_seconds(s) if s is not None else "-" for s in seconds),
            ]
        )
    return run_report(
        f"{plan.model} on {plan.cluster.name}",
        facts=facts,
        timelines=timelines,
        stages=rows,
        losses=record.losses,
        reference_losses=reference,
        exposed=exposed_rows(timelines),
    )


def _measured(prepared: Prepared, plan: Plan, record: RunRecord) -> Timeline | None:
    return record.timeline(compile_program(plan, prepared.model.graph))
