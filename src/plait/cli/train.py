"""`plait train`: plan if needed, start the ranks, show progress, compare with the prediction, write the report."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from plait.cli.answer import Told, show
from plait.cli.asked import Flags, check_batch
from plait.cli.options import (
    BatchOption,
    BucketSizeOption,
    BudgetOption,
    ClusterOption,
    DtypeOption,
    JobArgument,
    MicroBatchesOption,
    OverlapOption,
    PinOption,
    PinsOption,
    PlanOption,
    RecomputeOption,
    ReplicasOption,
    ScheduleOption,
    SeedOption,
    StagesOption,
    SyncOption,
    TensorOption,
    checked_dtype,
)
from plait.cli.outcome import compare_with_one_process, show_outcome, write_outcome
from plait.cli.prepare import Prepared, prepare, prepare_plan
from plait.cli.progress import Progress
from plait.cluster import load_cluster
from plait.errors import PlaitError
from plait.plan import Plan, check_has_model, load_plan, save_plan
from plait.run.checkpoint import check_replaceable, checkpoint_step
from plait.run.materialise import wanted_tensors
from plait.run.session import run_plan
from plait.run.settings import Settings
from plait.run.weights import find_weights
from plait.run.worker import run_worker
from plait.search import evaluate


def command(
    job: JobArgument,
    plan: PlanOption = None,
    cluster: ClusterOption = "local:2",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Training steps.")] = 100,
    batch: BatchOption = None,
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
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    clip: Annotated[float | None, typer.Option("--clip", min=0.0, help="Clip gradients to this global norm.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write a checkpoint at the end.")] = None,
    load: Annotated[Path | None, typer.Option("--load", help="Continue from a checkpoint of any plan.")] = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", help="Start from a safetensors or torch file, or a folder of them.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds any rank may wait for another.")
    ] = 300.0,
    verify: Annotated[
        bool, typer.Option("--verify", help="Afterwards train the same in one process and compare.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for plan, trace, report and logs.")] = Path("runs/latest"),
) -> None:
    """Train JOB: plans if needed, starts the ranks, shows progress, writes the report.

    Across machines: torchrun --nnodes … --nproc-per-node … -m plait train JOB --plan plan.json
    """
    settings = Settings(
        job=job,
        plan=plan or out / "plan.json",
        steps=steps,
        batch_size=batch or 1,
        seed=seed,
        dtype=checked_dtype(dtype),
        clip_norm=clip,
        timeout_seconds=timeout,
        save=save,
        load=load,
        weights=weights,
    )
    if load is not None and weights is not None:
        raise PlaitError(
            f"--load {load} continues a run with the weights it had, so --weights {weights} has no use. "
            "Leave one of them out."
        )
    if "RANK" in os.environ:  # torchrun started this process as one of the plan's ranks
        _as_rank(settings, plan)
        return
    console = Console()
    flags = Flags(
        stages, replicas, micro_batches, schedule, recompute, sync, overlap, bucket_size, budget, pin, pins, tensor
    )
    if load is not None:
        checkpoint_step(load)
    if save is not None:
        check_replaceable(save)
    if plan is not None:
        prepared, chosen = _prepare_given(plan, job, settings, batch, flags)
    else:
        asked = flags.asked()
        prepared = prepare(job, load_cluster(cluster), batch_size=batch, dtype=dtype, seed=seed, wishes=asked.wishes)
        answer = prepared.plans(asked)
        show(console, Told(answer), prepared)
        chosen = answer.best.plan
    _only_here(chosen)
    if weights is not None:
        for note in find_weights(weights, wanted_tensors(prepared.model)).notes:
            console.print(note, highlight=False)
    candidate = evaluate(chosen, prepared.model.graph, prepared.costs)
    save_plan(chosen, out / "plan.json")
    settings = settings.model_copy(update={"plan": out / "plan.json", "batch_size": chosen.batch_size})
    with Progress(console, prepared.job, chosen, steps, candidate.timeline.step_seconds) as progress:
        record = run_plan(settings, chosen, out, on_step=progress.update)
    reference = compare_with_one_process(console, prepared, settings, chosen, record) if verify else []
    show_outcome(console, prepared, candidate, record)
    write_outcome(console, prepared, candidate, record, reference, out)


def _prepare_given(path: Path, job: str, settings: Settings, batch: int | None, flags: Flags) -> tuple[Prepared, Plan]:
    flags.refuse_beside(path)
    plan = load_plan(path)
    check_batch(batch, plan)
    check_has_model(plan)
    return prepare_plan(plan, job, dtype=settings.dtype, seed=settings.seed), plan


def _as_rank(settings: Settings, plan: Path | None) -> None:
    if plan is None:
        raise PlaitError(
            "under torchrun every rank needs the same plan: make one with `plait plan JOB --cluster FILE` and pass it "
            "with --plan."
        )
    found = load_plan(plan)
    check_has_model(found)
    run_worker(settings.model_copy(update={"batch_size": found.batch_size}), on_message=_print_step)


def _print_step(_: int, message: dict[str, object]) -> None:
    if message["type"] == "step":
        Console().print(f"step {message['step']}  loss {message['loss']:.4f}  {message['seconds']:.3f} s")


def _only_here(plan: Plan) -> None:
    hosts = {plan.cluster.devices[device].host for device in plan.devices}
    if hosts != {"local"}:
        raise PlaitError(
            f"the plan is for cluster {plan.cluster.name} ({len(hosts)} hosts), which `plait train` cannot start from "
            "here. On each machine run `torchrun --nnodes N --nproc-per-node G --rdzv-endpoint HOST:PORT -m plait "
            "train JOB --plan plan.json`, or try it here with --cluster local:N."
        )
