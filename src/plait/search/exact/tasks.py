"""A compiled program as tasks: what takes time, what it holds meanwhile, what it comes after."""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

from plait.program import Instruction, Op, Program
from plait.simulate.times import Times

_SUMS = (Op.REDUCE, Op.REDUCE_TIED)


@dataclass
class Task:
    """A computation of a rank, a message, or a gradient sum.

    It holds its resources alone. It starts no earlier than `lag` after the end of each task in `after`; those with
    the same `meeting` start together.
    """

    what: Instruction
    rank: int
    seconds: float
    holds: tuple[tuple[str, int], ...]
    after: list[tuple[int, float]] = field(default_factory=list)
    meeting: Hashable = None


def tasks_of(program: Program, times: Times) -> list[Task]:
    """In an order in which nothing comes before what it waits for. Backwards must be whole."""
    tasks = _computations(program, times)
    place = {(task.rank, task.what.op, *task.what[1:3]): index for index, task in enumerate(tasks)}
    for (rank, op, stage, micro_batch), index in place.items():
        if op is Op.B:
            tasks[index].after.append((place[rank, Op.F, stage, micro_batch], 0.0))
    _add_messages(tasks, place, program, times)
    _add_sums(tasks, program, times)
    return tasks


def _computations(program: Program, times: Times) -> list[Task]:
    return [
        Task(
            ins,
            rank,
            times.compute(rank, ins.op, ins.stage, ins.rows),
            (("rank", rank),),
            meeting=ins[:3] if program.stages[ins.stage].coupled else None,
        )
        for rank, instructions in enumerate(program.ranks)
        for ins in instructions
        if ins.op in (Op.F, Op.B)
    ]


def _add_messages(
    tasks: list[Task], place: dict[tuple[int, Op, int, int], int], program: Program, times: Times
) -> None:
    cluster, devices = times.plan.cluster, times.plan.devices
    users = {
        (ins.peer, rank, *ins[2:5], *ins[6:]): ins.stage
        for rank, instructions in enumerate(program.ranks)
        for ins in instructions
        if ins.op is Op.RECV
    }
    for rank, instructions in enumerate(program.ranks):
        for ins in instructions:
            if ins.op is not Op.SEND:
                continue
            a, b = devices[rank], devices[ins.peer]
            seconds = program.edge_by_name[ins.name].value.num_bytes(ins.rows) / cluster.bandwidth(a, b)
            message = Task(ins, rank, seconds, tuple(("channel", channel) for channel in cluster.route(a, b)))
            op = Op.B if ins.gradient else Op.F
            message.after.append((place[rank, op, ins.stage, ins.micro_batch], 0.0))
            user = users[rank, ins.peer, *ins[2:5], *ins[6:]]
            tasks[place[ins.peer, op, user, ins.micro_batch]].after.append((len(tasks), cluster.latency(a, b)))
            tasks.append(message)


def _add_sums(tasks: list[Task], program: Program, times: Times) -> None:
    backwards: defaultdict[int, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        if task.what.op is Op.B:
            backwards[task.rank].append(index)
    sums = {ins.name: ins for instructions in program.ranks for ins in instructions if ins.op in _SUMS}
    for name, ins in sums.items():
        seconds, channels = times.reduce(name)
        ranks = program.bucket_by_name[name].ranks
        after = [(index, 0.0) for rank in ranks for index in backwards[rank]]
        tasks.append(Task(ins, ranks[0], seconds, tuple(("channel", channel) for channel in channels), after))


def replayed(tasks: list[Task], order: list[int]) -> float:
    """When all are done, if each resource is given to its tasks in this order, as soon as they can have it.

    Nothing may come before what it waits for, and those that meet must follow one another.
    """
    free: defaultdict[tuple[str, int], float] = defaultdict(float)
    ends = [0.0] * len(tasks)
    position = 0
    while position < len(order):
        group = [order[position]]
        meeting = tasks[group[0]].meeting
        while meeting and position + len(group) < len(order) and tasks[order[position + len(group)]].meeting == meeting:
            group.append(order[position + len(group)])
        earliest = [ends[earlier] + lag for index in group for earlier, lag in tasks[index].after]
        start = max([0.0, *earliest, *(free[held] for index in group for held in tasks[index].holds)])
        for index in group:
            ends[index] = start + tasks[index].seconds
            for held in tasks[index].holds:
                free[held] = ends[index]
        position += len(group)
    return max(ends)
