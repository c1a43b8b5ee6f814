"""`plait simulate`: what a plan would do, without running it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from plait.cli.exposed import show_exposed
from plait.cli.files import write_file
from plait.cli.options import DtypeOption, ProfileOption, SeedOption, checked_dtype
from plait.cli.profiled import prepare_any
from plait.cluster.units import format_bytes, format_seconds
from plait.plan import load_plan
from plait.report import gantt, legend, share
from plait.search import evaluate
from plait.simulate import chrome_trace


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    job: Annotated[str | None, typer.Option("--job", help="The job, where it is not the plan's name.")] = None,
    profile: ProfileOption = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write a trace for Perfetto.")] = None,
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
) -> None:
    """Simulate one step of a plan: time, bubbles, exposed communication, memory."""
    found = load_plan(plan)
    prepared = prepare_any(found, job, profile, dtype=checked_dtype(dtype), seed=seed)
    candidate = evaluate(found, prepared.graph, prepared.costs)
    timeline = candidate.timeline
    console = Console()
    console.print(
        f"[bold]{format_seconds(timeline.step_seconds)}[/] per step · bubble {share(timeline, 'bubble')} · exposed "
        f"communication {share(timeline, 'exposed_communication')}"
    )
    for rank, memory in enumerate(candidate.memory):
        device = found.cluster.devices[found.devices[rank]]
        console.print(
            f"rank {rank} on {device.name}: {format_bytes(memory.peak)} of {format_bytes(device.memory_bytes)}"
        )
    console.print(gantt(timeline, width=console.width), end="")
    console.print(legend([timeline]))
    show_exposed(console, [timeline])
    if trace is not None:
        write_file(trace, json.dumps(chrome_trace([timeline])), flag="--trace")
        console.print(f"wrote {escape(str(trace))} (open it in ui.perfetto.dev)")
