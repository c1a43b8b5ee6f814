"""What every emulated rank does: the real executor and the real transport over a timed device.

[Note: meetings] Replicas that compute together (BatchNorm over split rows) wait for one another here as they do in the
simulator, without cost: a few bytes that would wait behind a large message on the bed's wires, which serve one packet
after the other, though hardly between real hosts. So they meet in the office.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from plait.emulate.calibrate import calibrate
from plait.emulate.dilation import shrunk
from plait.emulate.exchanges import GroupExchange
from plait.emulate.namespaces import OFFICE_INTERFACE
from plait.emulate.plain import PlainTask
from plait.emulate.plain_rank import PlainRank
from plait.emulate.task import Task
from plait.emulate.timed import Device, TimedBucket, TimedStage, stage_values
from plait.program import Op, Program
from plait.run.backend import StepInputs
from plait.run.control import ControlClient
from plait.run.executor import Executor
from plait.run.sums import Sums, groups_of_program
from plait.run.tensor import tensor_groups
from plait.run.transport import TorchTransport
from plait.run.worker import TRACED_STEPS, Where, run_rank, tell_outcome
from plait.simulate import Span
from plait.sync.chunks import CHUNK_BYTES

_CPU = torch.device("cpu")


def run_emulated_rank(task: Task) -> None:
    run_rank(partial(_play, task))


def _play(task: Task, control: ControlClient, where: Where) -> None:
    torch.set_num_threads(1)
    program, sums = task.program(), Sums(task.sync, tuple(task.hosts), shrunk(CHUNK_BYTES, task.payload))
    dist.init_process_group("gloo", timeout=timedelta(seconds=task.timeout_seconds))
    groups = groups_of_program(program, sums) + tensor_groups(program)
    transport = TorchTransport(groups, device=_CPU, timeout_seconds=task.timeout_seconds)
    device = Device()
    finish: Callable[[], None] = lambda: None  # noqa: E731
    if task.plain:
        run_step = _plain(task.plain, device, task.payload, where)
    else:
        executor = _executor(task, program, sums, transport, device)
        run_step, finish = _executed(executor, program, where), executor.finish
    where.phase = "while calibrating the bed"
    findings = calibrate(transport, task.probes)
    control.send({"type": "calibration", **vars(findings)})
    traced: deque[tuple[int, list[Span]]] = deque(maxlen=TRACED_STEPS)
    for step in range(task.num_steps):
        start = time.perf_counter()
        spans = run_step(step)
        seconds = time.perf_counter() - start
        traced.append((step, spans))
        if transport.rank == 0:
            control.send({"type": "step", "step": step, "loss": 0.0, "seconds": seconds, "memory_bytes": 0})
    finish()  # sums of the last step are still under way, and whoever closes its connections ends those of others
    control.send({"type": "lateness", "seconds": device.lateness})
    tell_outcome(control, traced, _CPU)
    sums.close()
    transport.close()


def _executed(executor: Executor, program: Program, where: Where) -> Callable[[int], list[Span]]:
    def run_step(step: int) -> list[Span]:
        where.executor = executor
        return executor.run(program, StepInputs({}, {}, step, seed=0)).spans

    return run_step


def _plain(task: PlainTask, device: Device, payload: float, where: Where) -> Callable[[int], list[Span]]:
    rank = PlainRank(task, device, payload)

    def run_step(step: int) -> list[Span]:
        where.phase = f"in step {step} of plain PyTorch"
        rank.step()
        dist.barrier()  # a step is over when it is for all, as with Plait
        return []

    return run_step


def _executor(task: Task, program: Program, sums: Sums, transport: TorchTransport, device: Device) -> Executor:
    rank = transport.rank
    coupled = {index: stage.ranks for index, stage in enumerate(program.stages) if stage.coupled}
    with _interface(OFFICE_INTERFACE):  # all ranks make all groups, in one order: torch.distributed asks for that
        groups = {index: dist.new_group(list(ranks)) for index, ranks in coupled.items()}
    stages = {}
    for index in program.stages_of_rank(rank):
        seconds = {work.rows: work for work in task.computations[rank] if work.stage == index}
        meet = _meeting(groups[index]) if index in groups else lambda: None
        values, sends = stage_values(program, index)
        stages[index] = TimedStage(
            device,
            seconds,
            values,
            sends,
            task.payload,
            meet,
            puts_off=index in _put_off(program, rank),
            exchange=GroupExchange(transport, program.stages[index].group(rank), task.payload),
        )
    buckets = {
        bucket.name: TimedBucket(device, bucket, task.updates[rank][bucket.name], task.payload)
        for bucket in program.buckets
        if rank in bucket.ranks
    }
    return Executor(transport, stages, buckets, sums)


def _put_off(program: Program, rank: int) -> set[int]:
    return {ins.stage for ins in program.ranks[rank] if ins.op is Op.W}


def _meeting(group: dist.ProcessGroup) -> Callable[[], None]:
    def meet() -> None:
        dist.all_reduce(torch.zeros(1), group=group)

    return meet


@contextmanager
def _interface(name: str) -> Iterator[None]:
    """Groups made inside talk over this network interface."""
    before = os.environ["GLOO_SOCKET_IFNAME"]
    os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        yield
    finally:
        os.environ["GLOO_SOCKET_IFNAME"] = before
