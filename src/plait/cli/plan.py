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
    MicroBatchesOption,
    OptionalJobArgument,
    PinOption,
    PinsOption,
    ProfileOption,
    ReplicasOption,
    ScheduleOption,
    SeedOption,
    StagesOption,
    checked_dtype,
    wishes,
)
from plait.cli.prepare import Prepared, capture_job, prepare
from plait.cli.profiled import Profiled, prepare_profile
from plait.cluster import load_cluster
from plait.cluster.units import format_seconds
from plait.errors import PlaitError
from plait.plan import save_plan
from plait.program import compile_program, format_program
from plait.report import gantt, legend, plan_table
from plait.search import Answer


def command(
    job: OptionalJobArgument = None,
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
    profile: ProfileOption = None,
    profile_batch: Annotated[
        int | None, typer.Option("--profile-batch", min=1, help="Rows a PipeDream profile was measured with (256).")
    ] = None,
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
    """Find the fastest way to train JOB on a cluster and write it to a plan file.

    With --profile, the model of another tool's profile instead of JOB.
    """
    if explain is not None or between is not None:
        asked = question(explain, between)
        job, precision = _only_a_job(job, profile_batch), checked_dtype(dtype)
        captured = capture_job(job, load_cluster(cluster), batch_size=batch, dtype=precision, seed=seed)
        explain_cuts(captured, asked, micro_batches=micro_batches, as_json=as_json)
        return
    fixed = wishes(stages, replicas, micro_batches, schedule, pin, pins)
    prepared: Prepared | Profiled
    if profile is not None:
        _only_a_profile(job, dtype)
        prepared = prepare_profile(profile, load_cluster(cluster), batch_size=batch, profile_batch=profile_batch)
    else:
        job, precision = _only_a_job(job, profile_batch), checked_dtype(dtype)
        prepared = prepare(job, load_cluster(cluster), batch_size=batch, dtype=precision, seed=seed, wishes=fixed)
    answer = prepared.plans(fixed)
    if program is not None:
        text = format_program(compile_program(answer.best.plan, prepared.graph))
        write_file(program, text, flag="--program")
    save_plan(answer.best.plan, out)
    if as_json:
        typer.echo(json.dumps(_as_data(answer, prepared)))
        return
    console = Console()
    show(console, answer, prepared)
    console.print(f"wrote [bold]{escape(str(out))}[/] · {_what_next(job, out)}")


def _what_next(job: str | None, out: Path) -> str:
    file = shlex.quote(str(out))
    if job is None:
        return f"look at it: [bold]{escape(f'plait simulate {file}')}[/]"
    return f"run it: [bold]{escape(f'plait train {shlex.quote(job)} --plan {file}')}[/]"


def _only_a_profile(job: str | None, dtype: str) -> None:
    if job is not None:
        raise PlaitError(f"JOB {job!r} and --profile were both given; a plan is for one of them. Leave one out.")
    if dtype != "float32":
        raise PlaitError(f"--dtype {dtype} does not apply to a profile: its sizes are in bytes already. Leave it out.")


def _only_a_job(job: str | None, profile_batch: int | None) -> str:
    if job is None:
        raise PlaitError("neither JOB nor --profile was given. Name a job, as in `plait plan gpt2-tiny`, or a profile.")
    if profile_batch is not None:
        raise PlaitError(
            f"--profile-batch {profile_batch} says something of a profile. Give --profile, or leave it out."
        )
    return job


def show(console: Console, answer: Answer, prepared: Prepared | Profiled) -> None:
    graph, best = prepared.graph, answer.best
    console.print(plan_table(answer))
    sources = ", ".join(f"{kind}: {source}" for kind, source in prepared.costs.source.items())
    console.print(
        f"{len(graph.atoms)} atoms · costs {escape(sources)} · {len(answer.candidates)} plans simulated in "
        f"{format_seconds(answer.planning_seconds)} · no plan can beat "
        f"{format_seconds(answer.bound_seconds)} (total work)"
    )
    if answer.rejected:
        name, why = answer.rejected[0]
        console.print(f"{len(answer.rejected)} candidates cannot run, for example {name}: {escape(why)}")
    console.print(gantt(best.timeline, width=max(console.width - 8, 20)), end="")
    console.print(legend())


def _as_data(answer: Answer, prepared: Prepared | Profiled) -> dict[str, object]:
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
                "atoms": [atom.name for atom in prepared.graph.atoms[stage.start : stage.end]],
                "devices": [plan.cluster.devices[device].name for device in stage.devices],
                "data": stage.replicas,
                "peak_memory_bytes": max(peak[rank] for rank in plan.stage_ranks(index)),
            }
            for index, stage in enumerate(plan.stages)
        ],
    }
