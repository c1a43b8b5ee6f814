"""What every rank of `plait train` does, whoever started it."""

import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.jobs import Job, load_job
from plait.plan import load_plan
from plait.run.checkpoint import save_checkpoint
from plait.run.control import ADDRESS_VARIABLE, ControlClient, ControlServer, Message
from plait.run.errors import RankFailure, is_lost_peer
from plait.run.executor import Executor, StepResult
from plait.run.settings import Settings
from plait.run.trainer import Trainer, parallelize
from plait.simulate import Span

TRACED_STEPS = 11
_LAST_WORDS_LIMIT = 60.0
_STAY_SECONDS = 1.0


def build_model(job: Job, settings: Settings) -> nn.Module:
    """The job's model with the run's seed and precision: the same numbers in every process."""
    torch.manual_seed(settings.seed)
    return job.model().to(getattr(torch, settings.dtype))


def job_batches(job: Job, settings: Settings) -> Iterator[Any]:
    """The job's batches with floating-point tensors in the run's precision."""
    dtype = getattr(torch, settings.dtype)
    for batch in job.batches(settings.batch_size, settings.seed):
        yield pytree.tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, batch)


def run_worker(settings: Settings, on_message: Callable[[int, Message], None] | None = None) -> None:
    """Trains as one rank and tells the control server how it goes. Ends the process on failure."""
    run_rank(partial(_train, settings), on_message)


def run_rank(
    work: Callable[[ControlClient, "Where"], None], on_message: Callable[[int, Message], None] | None = None
) -> None:
    """Does `work` as one rank; whatever goes wrong in it, all ranks hear of it.

    `on_message` is for a rank that hosts the control server itself, as rank 0 does under torchrun.
    """
    rank = int(os.environ["RANK"])
    where = Where()
    with _control(rank, where, on_message) as control:
        try:
            work(control, where)
            control.finish()
        except RankFailure as failure:
            traceback.print_exc()
            control.fail(where=failure.where, why=failure.why, is_consequence=failure.lost_peer)
        except BaseException as error:  # noqa: BLE001 - whatever it is, all ranks must hear of it
            traceback.print_exc()
            why = str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"
            control.fail(where=where(), why=why, is_consequence=is_lost_peer(error))


class Where:
    """Where this rank is, for the control channel: the executor's position once there is one."""

    def __init__(self) -> None:
        self.executor: Executor | None = None
        self.phase = "while starting"

    def __call__(self) -> str:
        return self.executor.position if self.executor is not None else self.phase


@contextmanager
def _control(rank: int, where: Where, on_message: Callable[[int, Message], None] | None) -> Iterator[ControlClient]:
    """The launcher's control server, or one in rank 0 where torchrun started the ranks."""
    address = os.environ.get(ADDRESS_VARIABLE)
    if address is not None:
        yield ControlClient(address, rank, where)
        return
    world = int(os.environ["WORLD_SIZE"])
    host = os.environ["MASTER_ADDR"]
    store = dist.TCPStore(host, int(os.environ["MASTER_PORT"]), is_master=False)
    server = None
    if rank == 0:
        server = ControlServer(world, on_message or (lambda *_: None), host="", on_failure=_say)
        store.set("plait/control", server.address(host))
        signal.signal(signal.SIGTERM, _stay_a_moment)
    client = ControlClient(store.get("plait/control").decode(), rank, where)
    yield client
    if server is not None:
        server.wait_finished(_LAST_WORDS_LIMIT)  # a rank that finds the server gone takes that for the run's end
        server.close()


def _stay_a_moment(*_: object) -> None:
    """torchrun ends every rank the moment one has died; who hosts the server stays long enough to say why."""
    threading.Timer(_STAY_SECONDS, os._exit, (128 + signal.SIGTERM,)).start()


def _say(failure: Message) -> None:
    print(f"rank {failure['rank']} failed, {failure['where']}: {failure['why']}", file=sys.stderr, flush=True)  # noqa: T201


def _train(settings: Settings, control: ControlClient, where: Where) -> None:
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    job = load_job(settings.job)
    plan = load_plan(settings.plan)
    where.phase = "while capturing the model"
    trainer = parallelize(
        partial(build_model, job, settings),
        plan,
        optimizer=job.optimizer,
        loss=job.loss,
        weights=settings.weights,
        clip_norm=settings.clip_norm,
        seed=settings.seed,
        timeout_seconds=settings.timeout_seconds,
    )
    where.executor = trainer.executor
    if settings.load is not None:
        trainer.load(settings.load)
    if settings.disturb_rank == trainer.rank:
        _disturb(trainer)
    traced: deque[tuple[int, StepResult]] = deque(maxlen=TRACED_STEPS)
    batches = job_batches(job, settings)
    for _ in range(trainer.steps):  # a loaded checkpoint has seen these
        next(batches, None)
    control.tell_position()
    for step in range(settings.steps):
        batch = next(batches, None)
        if batch is None and step == 0:
            raise PlaitError(f"{settings.job} gave no batch after the {trainer.steps} steps the run had made before.")
        if batch is None:
            break
        start = time.perf_counter()
        loss = trainer.step(batch)
        seconds = time.perf_counter() - start
        traced.append((step, trainer.last))
        if trainer.rank == 0:
            progress = {"step": step, "loss": loss, "seconds": seconds, "memory_bytes": peak_memory(trainer.device)}
            control.send({"type": "step", **progress})
    _finish(settings, trainer, control, list(traced))


def _finish(settings: Settings, trainer: Trainer, control: ControlClient, traced: list[tuple[int, StepResult]]) -> None:
    if settings.save is not None:
        trainer.save(settings.save)
    if settings.gradients is not None:
        _save_gradients(trainer, settings)
    tell_outcome(control, [(step, result.spans) for step, result in traced], trainer.device)
    trainer.close()


def tell_outcome(control: ControlClient, traced: Iterable[tuple[int, list[Span]]], device: torch.device) -> None:
    """What this rank recorded, as `RunRecord` takes it."""
    spans = {step: [[s.rank, s.lane, str(s.what), s.start, s.end] for s in found] for step, found in traced}
    control.send({"type": "rank", "spans": spans, "memory_bytes": peak_memory(device), "host": os.uname().nodename})


def _save_gradients(trainer: Trainer, settings: Settings) -> None:
    assert settings.gradients is not None
    save_checkpoint(
        settings.gradients,
        tensors={
            **{f"gradient/{n}": t for n, t in trainer.gradients().items()},
            **{f"value/{n}": t for n, t in trainer.state().items()},
        },
        optimizers={},
        parameters={},
        step=trainer.steps,
    )


def _disturb(trainer: Trainer) -> None:
    """Changes one weight of this rank, so that a check of the run must fail."""
    bucket = next(iter(trainer.buckets.values()))
    with torch.no_grad():
        next(iter(bucket.parameters.values())).flatten()[0] += 0.5


def peak_memory(device: torch.device) -> int:
    """The most this process has held: on a GPU what PyTorch allocated, else the resident set."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
