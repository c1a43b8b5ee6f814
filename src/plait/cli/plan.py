"""`plait plan`: ranked plans with their bounds and reasons, the best one written to a file."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from plait.cli.answer import Told, as_data, show
from plait.cli.asked import Asked, Flags, bounded
from plait.cli.comparison import compared, comparison
from plait.cli.explain import explain_cuts, question
from plait.cli.explain_grid import explain_grid
from plait.cli.files import Output, all_or_none
from plait.cli.options import (
    BatchOption,
    BucketSizeOption,
    BudgetOption,
    ClusterOption,
    DtypeOption,
    MicroBatchesOption,
    OptionalJobArgument,
    OverlapOption,
    PinOption,
    PinsOption,
    ProfileOption,
    RecomputeOption,
    ReplicasOption,
    ScheduleOption,
    SeedOption,
    StagesOption,
    SyncOption,
    TensorOption,
    checked_dtype,
)
from plait.cli.prepare import Prepared, capture_job, prepare
from plait.cli.profiled import Profiled, prepare_profile
from plait.cluster import load_cluster
from plait.cluster.what_if import changed, parse_changes
from plait.errors import PlaitError
from plait.graph import Graph
from plait.plan import Plan, save_plan
from plait.program import compile_program, format_program
from plait.report.plans import Changed
from plait.schedule import make_schedule, schedule_from_lanes, write_csv
from plait.search import Answer

_SHOWN, _WRITTEN = "What you see", "What is written"


def command(
    job: OptionalJobArgument = None,
    cluster: ClusterOption = "local:2",
    batch: BatchOption = None,
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    profile: ProfileOption = None,
    profile_batch: Annotated[
        int | None, typer.Option("--profile-batch", min=1, help="Rows a PipeDream profile was measured with (256).")
    ] = None,
    stages: StagesOption = None,
    replicas: ReplicasOption = None,
    tensor: TensorOption = None,
    micro_batches: MicroBatchesOption = None,
    schedule: ScheduleOption = None,
    recompute: RecomputeOption = None,
    sync: SyncOption = None,
    overlap: OverlapOption = None,
    bucket_size: BucketSizeOption = None,
    budget: BudgetOption = None,
    pin: PinOption = None,
    pins: PinsOption = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare", metavar="all|NAMES", help="Also what classical planners find.", rich_help_panel=_SHOWN
        ),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="KEY=VALUE",
            help='Plan again for a changed cluster: "uplink=100 Gbit/s, hosts=16". As often as you like.',
            rich_help_panel=_SHOWN,
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="plans|cuts|cuts:MODULE|grid",
            help="plans: what holds the best plan up and why others lose. Instead of planning, cuts: where the model "
            "may be cut; grid: what devices that share layers split.",
            rich_help_panel=_SHOWN,
        ),
    ] = None,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--between",
            metavar="A B",
            help="With --explain cuts: may a cut part A and B? If not, why?",
            rich_help_panel=_SHOWN,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.", rich_help_panel=_SHOWN)
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="Where to write the best plan.", rich_help_panel=_WRITTEN)] = Path(
        "plan.json"
    ),
    program: Annotated[
        Path | None,
        typer.Option("--program", help="Also write the plan's program as text.", rich_help_panel=_WRITTEN),
    ] = None,
    export_schedule: Annotated[
        Path | None,
        typer.Option(
            "--export-schedule",
            metavar="FILE.csv",
            help="Also write the order of micro-batches for PyTorch's pipelining.",
            rich_help_panel=_WRITTEN,
        ),
    ] = None,
) -> None:
    """Find the fastest way to train JOB on a cluster and write it to a plan file.

    With --profile, the model of another tool's profile instead of JOB.
    """
    asked = Flags(
        stages, replicas, micro_batches, schedule, recompute, sync, overlap, bucket_size, budget, pin, pins, tensor
    ).asked()
    planners = compared(compare)
    if between is not None or explain not in (None, "plans", "grid"):
        cuts = question(explain, between)
        job, precision = _only_a_job(job, profile_batch), checked_dtype(dtype)
        captured = capture_job(job, load_cluster(cluster), batch_size=batch, dtype=precision, seed=seed)
        explain_cuts(captured, cuts, micro_batches=micro_batches, as_json=as_json)
        return
    machines = load_cluster(cluster)
    others = {text: changed(machines, parse_changes(text)) for text in what_if or ()}
    prepared: Prepared | Profiled
    if profile is not None:
        _only_a_profile(job, dtype)
        prepared = prepare_profile(profile, machines, batch_size=batch, profile_batch=profile_batch)
    else:
        job, precision = _only_a_job(job, profile_batch), checked_dtype(dtype)
        prepared = prepare(job, machines, batch_size=batch, dtype=precision, seed=seed, wishes=asked.wishes)
    there = {text: prepared.on(machines) for text, machines in others.items()}
    if explain == "grid":
        if isinstance(prepared, Profiled):
            raise PlaitError("--explain grid needs the model's code, and a profile has none: give a JOB instead.")
        explain_grid(prepared, as_json=as_json)
        return
    answer = prepared.plans(asked)
    problem = replace(prepared.problem, micro_batches=asked.wishes.micro_batches)
    after = [_changed(text, other, asked, answer) for text, other in there.items()]
    told = Told(answer, comparison(problem, planners), after, explained=explain == "plans")
    best = answer.best.plan
    with all_or_none(_outputs(best, prepared.graph, program, export_schedule)):
        save_plan(best, out)
    if as_json:
        typer.echo(json.dumps(as_data(told, prepared.graph)))
        return
    console = Console()
    show(console, told, prepared)
    console.print(f"wrote [bold]{escape(str(out))}[/] · {_what_next(job, out)}")


def _changed(text: str, there: Prepared | Profiled, asked: Asked, before: Answer) -> Changed:
    """What would be on a changed cluster, the best plan of before among it; that nothing fits is an answer too."""
    try:
        after = there.plans(asked)
    except PlaitError as error:
        return Changed(text, None, str(error))
    try:
        kept = bounded(replace(before.best.plan, cluster=there.cluster), there.problem)
    except PlaitError:
        return Changed(text, after)
    found = sorted((*after.candidates, kept), key=lambda candidate: candidate.step_seconds)
    return Changed(text, replace(after, candidates=tuple(found)))


def _outputs(plan: Plan, graph: Graph, program: Path | None, schedule: Path | None) -> Sequence[Output]:
    found = []
    if program is not None:
        text = format_program(compile_program(plan, graph))
        found.append(Output(program, "--program", lambda path: path.write_text(text)))
    if schedule is not None:
        if plan.lanes:
            order = schedule_from_lanes(plan.schedule, plan.lanes, plan.positions, plan.micro_batches)
        else:
            order = make_schedule(plan.schedule, plan.positions, plan.micro_batches)
        found.append(Output(schedule, "--export-schedule", lambda path: write_csv(order, path)))
    return found


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
