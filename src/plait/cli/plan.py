"""`plait plan`: ranked plans, written to a file."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from plait.cli.explain import explain_cuts, question
from plait.cli.files import write_file
from plait.cli.options import (
    BatchOption,
    ClusterOption,
    DtypeOption,
    JobArgument,
    MicroBatchesOption,
    PinOption,
    PinsOption,
    ReplicasOption,
    ScheduleOption,
    SeedOption,
    StagesOption,
    checked_dtype,
    wishes,
)
from plait.cli.prepare import Prepared, capture_job, prepare
from plait.cluster import load_cluster
from plait.cluster.units import format_seconds
from plait.plan import save_plan
from plait.program import compile_program, format_program
from plait.report import gantt, legend, plan_table
from plait.search import Answer


def command(
    job: JobArgument,
    cluster: ClusterOption = "local:2",
    batch: BatchOption = None,
    stages: StagesOption = None,
    replicas: ReplicasOption = None,
    micro_batches: MicroBatchesOption = None,
    schedule: ScheduleOption = None,
    pin: PinOption = None,
    pins: PinsOption = None,
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option("--out", help="Where to write the best plan.")] = Path("plan.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    program: Annotated[Path | None, typer.Option("--program", help="Also write the plan's program as text.")] = None,
    explain: Annotated[
        str | None,
        typer.Option("--explain", help="Instead of planning: cuts, or cuts:MODULE, shows where the model may be cut."),
    ] = None,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option("--between", metavar="A B", help="With --explain cuts: may a cut part A and B? If not, why?"),
    ] = None,
) -> None:
    """Find the fastest way to train JOB on a cluster and write it to a plan file."""
    if explain is not None or between is not None:
        asked = question(explain, between)
        captured = capture_job(job, load_cluster(cluster), batch_size=batch, dtype=checked_dtype(dtype), seed=seed)
        explain_cuts(captured, asked, micro_batches=micro_batches, as_json=as_json)
        return
    fixed = wishes(stages, replicas, micro_batches, schedule, pin, pins)
    prepared = prepare(
        job, load_cluster(cluster), batch_size=batch, dtype=checked_dtype(dtype), seed=seed, wishes=fixed
    )
    answer = prepared.plans(fixed)
    if program is not None:
        text = format_program(compile_program(answer.best.plan, prepared.model.graph))
        write_file(program, text, flag="--program")
    save_plan(answer.best.plan, out)
    if as_json:
        typer.echo(json.dumps(_as_data(answer, prepared)))
        return
    console = Console()
    show(console, answer, prepared)
    run = escape(f"plait train {shlex.quote(job)} --plan {shlex.quote(str(out))}")
    console.print(f"wrote [bold]{escape(str(out))}[/] · run it: [bold]{run}[/]")


def show(console: Console, answer: Answer, prepared: Prepared) -> None:
    graph, best = prepared.model.graph, answer.best
    console.print(plan_table(answer))
    sources = ", ".join(f"{kind}: {source}" for kind, source in prepared.costs.source.items())
    console.print(
        f"{len(graph.atoms)} atoms · costs {sources} · {len(answer.candidates)} plans simulated in "
        f"{format_seconds(answer.planning_seconds)} · no plan can beat "
        f"{format_seconds(answer.bound_seconds)} (total work)"
    )
    if answer.rejected:
        name, why = answer.rejected[0]
        console.print(f"{len(answer.rejected)} candidates cannot run, for example {name}: {escape(why)}")
    console.print(gantt(best.timeline, width=max(console.width - 8, 20)), end="")
    console.print(legend())


def _as_data(answer: Answer, prepared: Prepared) -> dict[str, object]:
    best, plan = answer.best, answer.best.plan
    peak = {rank: memory.peak for rank, memory in enumerate(best.memory)}
    return {
        "step_seconds": best.timeline.step_seconds,
        "bound_seconds": answer.bound_seconds,
        "planning_seconds": answer.planning_seconds,
        "micro_batches": plan.micro_batches,
        "schedule": plan.schedule,
        "stages": [
            {
                "atoms": [atom.name for atom in prepared.model.graph.atoms[stage.start : stage.end]],
                "devices": [plan.cluster.devices[device].name for device in stage.devices],
                "data": stage.replicas,
                "peak_memory_bytes": max(peak[rank] for rank in plan.stage_ranks(index)),
            }
            for index, stage in enumerate(plan.stages)
        ],
    }
