"""The noun `Trainer`: a model being trained under a plan, on one of its ranks."""

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx

from plait.cost import OptimizerFactory
from plait.errors import PlaitError
from plait.graph import Loss, Model, batch_rows, build_graph
from plait.graph.sharding.writer import TensorShare
from plait.graph.stage import StageCode, build_stage, place_stage, take_parts, written_buffers
from plait.heap import keep_freed_memory
from plait.plan import Plan, check_has_model, load_plan, save_plan, validate
from plait.plan.batches import example
from plait.program import Op, Program, check_program, compile_program
from plait.run.batch import arranged, named_inputs
from plait.run.buckets import GradientBucket
from plait.run.checkpoint import load_checkpoint, save_checkpoint
from plait.run.clock import clock_of
from plait.run.errors import BadBatch
from plait.run.executor import Executor, StepResult
from plait.run.materialise import ModelSource, Origin, construct, origin_of
from plait.run.stage import StageRun
from plait.run.summing import Summing, groups_of_program
from plait.run.tensor import Parts, TensorExchange, check_splits, holders, same_place, tensor_groups
from plait.run.transport import ReplicaExchange, TorchTransport, Transport
from plait.simulate import Cause, exposed_seconds

DEFAULT_TIMEOUT = 300.0
_METRICS = Cause.GRADIENT, Cause.ACTIVATION, Cause.TIED
SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


def parallelize(
    model: ModelSource,
    plan: Plan,
    *,
    optimizer: OptimizerFactory,
    loss: Loss | None = None,
    scheduler: SchedulerFactory | None = None,
    weights: Path | str | None = None,
    clip_norm: float | None = None,
    seed: int = 0,
    timeout_seconds: float = DEFAULT_TIMEOUT,
) -> "Trainer":
    """A trainer for this rank of `plan`. Every rank calls it with the same model and plan.

    `model` is a module, or a function that builds one: then only this rank's part of it ever takes memory, with the
    numbers the whole model would have. `weights` is a file or folder to take them from instead, by name; with it the
    module may be on `meta`.

    `optimizer` is called once per gradient bucket with that bucket's parameters, so it must update each
    parameter by its own gradient alone (as SGD, Adam and their kin do).
    """
    check_has_model(plan)
    construction = construct(model)
    captured = build_graph(construction.module, example(plan.batch), loss=loss, name=plan.model)
    validate(plan, captured.graph)
    origin = origin_of(construction, captured, weights)
    device = start_process_group(plan, timeout_seconds)
    plan = agreed_plan(plan)
    validate(plan, captured.graph)
    transport = TorchTransport(groups_of(plan, captured), device=device, timeout_seconds=timeout_seconds)
    trainer = Trainer(
        captured,
        plan,
        transport,
        optimizer=optimizer,
        scheduler=scheduler,
        clip_norm=clip_norm,
        seed=seed,
        device=device,
        origin=origin,
    )
    if trainer.rank == 0:
        for note in origin.weights.notes:
            warnings.warn(note, stacklevel=2)
    if device.type == "cpu":
        keep_freed_memory()  # not before: what the tensors were made with is freed for good
    return trainer


def start_process_group(plan: Plan, timeout_seconds: float) -> torch.device:
    """Joins the ranks that torchrun or `plait train` started; returns this rank's device."""
    device = device_of(plan)
    if not dist.is_initialized():
        if "RANK" not in os.environ and plan.num_ranks > 1:
            raise PlaitError(
                f"the plan has {plan.num_ranks} ranks, but this process was started alone. Start it with "
                f"`torchrun --nproc-per-node {plan.num_ranks} your_script.py`, or use `plait train`."
            )
        limit, backend = timedelta(seconds=timeout_seconds), _backend(device)
        if "RANK" in os.environ:
            dist.init_process_group(backend, timeout=limit)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=limit)
    return device


def agreed_plan(plan: Plan) -> Plan:
    """Rank 0's plan: where every rank has planned for itself, measurements differ and so may the plans."""
    if dist.get_world_size() > 1:
        with tempfile.TemporaryDirectory(prefix="plait-plan-") as folder:
            path = Path(folder) / "plan.json"
            save_plan(plan, path)
            text = torch.tensor(list(path.read_bytes()), dtype=torch.uint8)
            size = torch.tensor([len(text)])
            dist.broadcast(size, 0)
            if dist.get_rank() != 0:
                text = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(text, 0)
            path.write_bytes(bytes(text.tolist()))
            plan = load_plan(path)
    if dist.get_world_size() != plan.num_ranks:
        raise PlaitError(
            f"the plan has {plan.num_ranks} ranks, but {dist.get_world_size()} processes were started. "
            "Start as many as the plan uses, or plan for this cluster."
        )
    return plan


def _check_exchanges(program: Program) -> None:
    """Replicas that exchange statistics wait for one another, so each needs rows of every micro-batch."""
    for index, stage in enumerate(program.stages):
        if stage.coupled and any(first == last for spans in stage.rows for first, last in spans):
            raise BadBatch(
                f"a batch of {program.batch_rows} rows leaves one of the {len(stage.ranks)} replicas of stage {index} "
                "without rows of some micro-batch, but they compute a BatchNorm together. Leave short batches out "
                "(drop_last=True), or use fewer replicas, fewer micro-batches or more even shares."
            )


def device_of(plan: Plan) -> torch.device:
    """This rank's device: a GPU where the plan asks for GPUs and this machine has one."""
    wants_gpu = all(plan.cluster.devices[device].kind.backend == "cuda" for device in plan.devices)
    if not (wants_gpu and torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _backend(device: torch.device) -> str:
    """NCCL between GPUs, but it refuses two ranks on one: gloo through host memory serves those."""
    crowded = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()
    return "gloo" if device.type == "cpu" or crowded else "cpu:gloo,cuda:nccl"


def groups_of(plan: Plan, model: Model) -> list[tuple[str, tuple[int, ...]]]:
    """Every set of ranks that sums or exchanges something, the same list on every rank."""
    program = compile_program(plan, model.graph)
    groups = [("gradients", ranks) for _, ranks in holders(plan, model.graph)]
    return groups + groups_of_program(program, Summing.of(plan)) + tensor_groups(program)


class Trainer:
    """Trains under a plan. `step` gives the same loss on every rank."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        transport: Transport,
        *,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
        device: torch.device | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.plan = plan
        self.rank = transport.rank
        self.device = device or torch.device("cpu")
        self.seed = seed
        self.steps = 0
        self.last = StepResult()
        self._graph = model.graph
        self._captured = replace(model.captured, module=fx.GraphModule({}, fx.Graph()))  # names only, no weights
        self._transport = transport
        self._programs: dict[int, Program] = {}
        self._clip = clip_norm is not None
        check_splits(plan, model)
        program = self.program(plan.batch_size)
        # The same on all ranks of a stage, so that those of a tensor group exchange in one order.
        split = {ins.stage for rank in program.ranks for ins in rank if ins.op is Op.W}
        watched = {ins.stage for rank in program.ranks for ins in rank if ins.inside}
        self._tables = {i: program.stages[i] for i in program.stages_of_rank(self.rank)}
        self._groups = {i: TensorExchange(transport, table.group(self.rank)) for i, table in self._tables.items()}
        codes = {i: self._stage_code(model, i, split_backward=i in split, watched=i in watched) for i in self._tables}
        self._parts = Parts.of(codes, self._groups)
        self._unused = self._unused_tensors(model) if self.rank == 0 else {}
        if origin is not None:
            self._unused = origin.fill([m for code in codes.values() for m in code.modules], self._unused)
        for index, code in codes.items():
            take_parts(code, self._groups[index])
            place_stage(code, self.device)
        own_buckets = {b.name: b.parameters for b in program.buckets if self.rank in b.ranks}
        self.stages = {index: self._stage_run(model, index, code, own_buckets) for index, code in codes.items()}
        self._buffers = {n: b for s in self.stages.values() for n, b in s.code.named_buffers().items()}
        self._parameters = {n: p for s in self.stages.values() for n, p in s.code.named_parameters().items()}
        self._equalise()
        skippable = {p.name for p in model.graph.parameters if p.may_be_skipped}
        self.buckets = {
            bucket.name: GradientBucket(
                bucket,
                self._parameters,
                optimizer,
                skippable,
                apart=split.isdisjoint(self._tables),
                counted=self._parts.counted(bucket.parameters, self._place),
            )
            for bucket in program.buckets
            if self.rank in bucket.ranks
        }
        self._scheduler = scheduler
        self._schedulers = self._start_schedulers()
        self.executor = Executor(
            transport,
            self.stages,
            self.buckets,
            Summing.of(plan),
            clip_norm=clip_norm,
            clock=clock_of(self.device),
        )

    def step(self, batch: Any) -> float:
        """One synchronous step on the whole batch, given the same on every rank; returns its mean loss."""
        batch = arranged(batch, self.plan.batch)
        rows = batch_rows(batch)
        inputs = named_inputs(self._captured, batch, step=self.steps, seed=self.seed, device=self.device)
        self.last = self.executor.run(self.program(rows), inputs)
        self.steps += 1
        return self.last.loss

    def finish(self) -> None:
        """Uses the gradient sums that the last step has left under way: from here on every weight is up to date.

        Whatever reads or writes weights through the trainer does so first.
        """
        self.executor.finish()

    def program(self, rows: int) -> Program:
        """The checked program for a batch of `rows` rows; a short last batch has its own."""
        if rows not in self._programs:
            program = compile_program(self.plan, self._graph, batch_rows=rows, clip=self._clip)
            check_program(program)
            _check_exchanges(program)
            self._programs[rows] = program
        return self._programs[rows]

    @property
    def metrics(self) -> dict[str, float]:
        """What the last step took on this rank, in seconds, and its loss.

        `exposed_…` is what it waited for gradients, activations and tied parameters; whether those were under way or
        another rank was still computing, one rank alone cannot tell (`plait train` can, who has the records of all).
        """
        lanes = {"compute": 0.0, "wait": 0.0}
        for span in self.last.spans:
            if span.lane in lanes:
                lanes[span.lane] += span.end - span.start
        extra = {} if self.last.gradient_norm is None else {"gradient_norm": self.last.gradient_norm}
        waited = exposed_seconds(self.last.spans)
        exposed = {f"exposed_{cause}": waited.get(cause, 0.0) for cause in _METRICS}
        return {"loss": self.last.loss, **lanes, **exposed, **extra}

    @property
    def _place(self) -> int:
        """This rank's place in its tensor group, the same for all its stages."""
        return next(iter(self._groups.values())).index

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers of this rank's stages, by original name and whole.

        Where the stages' layers are shared by tensor groups, all ranks call this together.
        """
        self.finish()
        held = {**self._parameters, **self._buffers, **self._unused}
        return {name: self._parts.whole(name, tensor) for name, tensor in held.items()}

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the last step of this rank's stages, as `state` has their parameters."""
        self.finish()
        return {
            name: self._parts.whole(name, parameter.grad)
            for bucket in self.buckets.values()
            for name, parameter in bucket.parameters.items()
            if parameter.grad is not None and name not in bucket.left_out()
        }

    def save(self, path: Path | str) -> None:
        """Writes a checkpoint that any plan for this model can load."""
        self.finish()
        save_checkpoint(
            path,
            tensors=self.state(),
            optimizers={name: bucket.optimizer for name, bucket in self.buckets.items()},
            parameters=self._parameters,
            step=self.steps,
            parts=self._parts,
        )

    def load(self, path: Path | str) -> None:
        """Continues from a checkpoint, whatever plan wrote it."""
        self.finish()
        self.steps = load_checkpoint(
            path,
            tensors={**self._parameters, **self._buffers, **self._unused},
            optimizers={name: bucket.optimizer for name, bucket in self.buckets.items()},
            parameters=self._parameters,
            parts=self._parts,
        )
        self._schedulers = self._start_schedulers()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it wants an optimiser step first, and those were taken before the save
            for scheduler in self._schedulers:
                for _ in range(self.steps):
                    scheduler.step()

    def close(self) -> None:
        self.finish()
        if isinstance(self._transport, TorchTransport):
            self._transport.close()

    def _start_schedulers(self) -> list[torch.optim.lr_scheduler.LRScheduler]:
        """Schedulers at their first step, whatever earlier ones have made of the learning rates."""
        if self._scheduler is None:
            return []
        for group in (group for bucket in self.buckets.values() for group in bucket.optimizer.param_groups):
            group["lr"] = group.pop("initial_lr", group["lr"])
        for bucket in self.buckets.values():
            bucket.scheduler = self._scheduler(bucket.optimizer)
        return [bucket.scheduler for bucket in self.buckets.values() if bucket.scheduler is not None]

    def _stage_code(self, model: Model, index: int, *, split_backward: bool, watched: bool) -> StageCode:
        stage, table = self.plan.stages[index], self._tables[index]
        return build_stage(
            model,
            self.plan.cut(model.graph)[index],
            split_rows=stage.replicas > 1,
            replicas=ReplicaExchange(self._transport, same_place(table, self.rank)),
            split_backward=split_backward,
            watched=watched,
            share=TensorShare(stage.split, self._groups[index]) if stage.tensor > 1 else None,
        )

    def _stage_run(self, model: Model, index: int, code: StageCode, buckets: Mapping[str, Sequence[str]]) -> StageRun:
        recompute = self.plan.stages[index].recompute
        written = written_buffers(model, code.cut) if recompute else frozenset[str]()
        return StageRun(code, self.device, recompute=recompute, written=written, buckets=buckets)

    def _unused_tensors(self, model: Model) -> dict[str, Tensor]:
        """Weights the loss never reads still belong in a checkpoint."""
        held: Mapping[str, Tensor] = {
            **dict(model.captured.module.named_parameters()),
            **dict(model.captured.module.named_buffers()),
        }
        by_name = {model.captured.parameter_names.get(name, name): tensor for name, tensor in held.items()}
        return {name: by_name[name].detach() for name in model.unused if name in by_name}

    def _equalise(self) -> None:
        """Holders of one tensor start from the same numbers, whatever each rank's model was built with."""
        own = {**self._parameters, **self._buffers}
        for name, ranks in holders(self.plan, self._graph):
            if self.rank in ranks:
                self._transport.broadcast(own[name].data, ranks, ranks[0]).wait()
