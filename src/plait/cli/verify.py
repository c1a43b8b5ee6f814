"""`plait verify`: a plan against one device, on the same batches."""

import itertools
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

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
from plait.cli.outcome import largest_loss_difference
from plait.cli.prepare import prepare
from plait.cluster import load_cluster
from plait.errors import PlaitError
from plait.graph import Graph, Model, build_graph
from plait.graph.randomness import seeded
from plait.jobs import load_job
from plait.plan import Plan, check_has_model, load_plan, micro_batch_sizes, save_plan
from plait.plan.batches import describe, example
from plait.run.batch import arranged
from plait.run.checkpoint import load_tensors
from plait.run.reference import OneDevice
from plait.run.session import run_plan
from plait.run.settings import Settings
from plait.run.trainer import device_of
from plait.run.worker import build_model, job_batches

# What a correct run may differ by: rounding in another order of summation.
_LIMITS = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 5e-2}


def command(
    job: JobArgument,
    plan: PlanOption = None,
    cluster: ClusterOption = "local:2",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to compare.")] = 2,
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
    dtype: DtypeOption = "float64",
    seed: SeedOption = 0,
    clip: Annotated[float | None, typer.Option("--clip", min=0.0, help="Clip gradients to this global norm.")] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds any rank may wait for another.")
    ] = 120.0,
    disturb: Annotated[
        int | None, typer.Option("--disturb-rank", help="Change one weight of this rank first: the check must fail.")
    ] = None,
) -> None:
    """Run a plan and one device on the same batches; exit 0 if loss, gradients and weights agree, else 1."""
    flags = Flags(
        stages, replicas, micro_batches, schedule, recompute, sync, overlap, bucket_size, budget, pin, pins, tensor
    )
    found = _given(plan, batch, flags) if plan is not None else _planned(job, cluster, batch, flags, dtype, seed)
    if disturb is not None and not 0 <= disturb < found.num_ranks:
        raise PlaitError(f"--disturb-rank {disturb} does not exist: the plan has ranks 0 to {found.num_ranks - 1}.")
    settings = Settings(
        job=job,
        plan=plan or Path("plan.json"),
        steps=steps,
        batch_size=found.batch_size,
        seed=seed,
        dtype=checked_dtype(dtype),
        clip_norm=clip,
        timeout_seconds=timeout,
        disturb_rank=disturb,
    )
    work = load_job(job)
    model = build_graph(build_model(work, settings), _example(found.batch, settings), loss=work.loss, name=work.name)
    found = _in_precision(found, model.graph, settings)
    _refuse_split_masks(model, found)
    one = OneDevice(model, work.optimizer, seed=seed, clip_norm=clip, device=device_of(found))
    sizes = micro_batch_sizes(found.batch_size, found.micro_batches, found.most_replicas)
    batches = job_batches(work, settings)
    losses = [one.step(arranged(batch, found.batch), sizes) for batch in itertools.islice(batches, steps)]
    with tempfile.TemporaryDirectory(prefix="plait-verify-") as folder:
        results, own_plan = Path(folder) / "results", Path(folder) / "plan.json"
        save_plan(found, own_plan)
        record = run_plan(settings.model_copy(update={"plan": own_plan, "gradients": results}), found, Path(folder))
        tensors = load_tensors(results / "model")
    state = {n: t.detach().cpu() for n, t in {**one.parameters, **one.buffers()}.items()}
    differences = {
        "loss": largest_loss_difference(record.losses, losses),
        "gradients": largest_difference(_part(tensors, "gradient/"), {n: g.cpu() for n, g in one.gradients().items()}),
        "parameters and buffers": largest_difference(_part(tensors, "value/"), state, floor=1.0),
    }
    limit = _LIMITS[dtype]
    _show(differences, limit, dtype)
    raise typer.Exit(0 if max(differences.values()) <= limit else 1)


def _given(path: Path, batch: int | None, flags: Flags) -> Plan:
    flags.refuse_beside(path)
    plan = load_plan(path)
    check_batch(batch, plan)
    check_has_model(plan)
    return plan


def _planned(job: str, cluster: str, batch: int | None, flags: Flags, dtype: str, seed: int) -> Plan:
    asked = flags.asked()
    machines, precision = load_cluster(cluster), checked_dtype(dtype)
    prepared = prepare(job, machines, batch_size=batch, dtype=precision, seed=seed, wishes=asked.wishes)
    return prepared.plans(asked).best.plan


def _in_precision(plan: Plan, graph: Graph, settings: Settings) -> Plan:
    """The plan for the same model in the precision to verify in, which changes nothing but sizes in bytes."""
    for other in _LIMITS:
        values = tuple(replace(v, dtype=other if v.dtype == settings.dtype else v.dtype) for v in graph.values)
        weights = tuple(replace(p, dtype=other if p.dtype == settings.dtype else p.dtype) for p in graph.parameters)
        if replace(graph, values=values, parameters=weights).fingerprint == plan.fingerprint:
            return replace(plan, fingerprint=graph.fingerprint, batch=describe(_example(plan.batch, settings)))
    raise PlaitError(
        f"the plan was made for {plan.model}, not for {settings.job}. Plan again with `plait plan {settings.job}`."
    )


def _example(description: object, settings: Settings) -> object:
    dtype = getattr(torch, settings.dtype)
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, example(description)
    )


def _refuse_split_masks(model: Model, plan: Plan) -> None:
    """Replicas that share a micro-batch draw masks of their own, so there is nothing to compare."""
    draws = any(node.target is seeded for node in model.captured.module.graph.nodes)
    if draws and plan.most_replicas > 1:
        raise PlaitError(
            f"the plan splits a micro-batch's rows ({plan.layout()}) and the model draws random numbers: each replica "
            "draws its own, as documented, so one device's numbers cannot be expected. Turn dropout off (for example "
            "JOB?dropout=0), or verify a plan with one device per stage."
        )


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor], *, floor: float = 1e-6) -> float:
    """The largest difference relative to the tensor's largest number, or to `floor` of the largest of all.

    A gradient that is zero but for rounding (a key's bias, say) has no digits of its own to compare, hence the
    floor. Adam turns such rounding into steps of its learning rate, so weights are compared at the model's scale.
    """
    missing = set(expected) - set(found)
    if missing:
        raise PlaitError(f"the run did not return {sorted(missing)[0]} ({len(missing)} tensors missing)")
    floats = {n: t.double() for n, t in expected.items() if t.numel() > 0}
    least = floor * max((float(t.abs().max()) for t in floats.values()), default=0.0)
    worst = 0.0
    for name, tensor in floats.items():
        scale = max(float(tensor.abs().max()), least, 1e-300)
        difference = float((found[name].double() - tensor).abs().max()) / scale
        worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


def _show(differences: dict[str, float], limit: float, dtype: str) -> None:
    table = Table(title=f"Against one device with gradient accumulation, {dtype}", title_justify="left")
    table.add_column("what")
    table.add_column("largest relative difference", justify="right")
    table.add_column(f"<= {limit:.0e}")
    for name, difference in differences.items():
        table.add_row(name, f"{difference:.2e}", "[green]equal[/]" if difference <= limit else "[red]different[/]")
    Console().print(table)
