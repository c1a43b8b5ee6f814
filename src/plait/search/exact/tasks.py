"""A compiled program as tasks: what takes time, what it holds meanwhile, what it comes after."""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

from plait.program import Instruction, Op, Program
from plait.simulate.times import Times

_SUMS = (Op.REDUCE, Op.REDUCE_TIED)


Held = tuple[tuple[str, int], float]  # a rank or channel, and for how long


@dataclass
class Task:
    """A computation of a rank, a message on one channel of its route, or a gradient sum.

    It holds each of its resources alone, from its start for as long as stands there. It starts no earlier than `lag`
    after the end of each task in `after` (before it, where the lag is negative: a value sent inside the forward that
    makes it), and than the start of `along`, the same message on the channel before; those with the same `meeting`
    start together.
    """

    what: Instruction
    rank: int
    seconds: float
    holds: tuple[Held, ...]
    after: list[tuple[int, float]] = field(default_factory=list)
    meeting: Hashable = None
    along: int | None = None

    @property
    def needs(self) -> list[int]:
        """Tasks that must have started before it."""
        return [index for index, _ in self.after] + ([] if self.along is None else [self.along])


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
    tasks = []
    for rank, instructions in enumerate(program.ranks):
        for ins in instructions:
            if ins.op in (Op.F, Op.B):
                seconds = times.compute(rank, ins.op, ins.stage, ins.rows)
                meeting = ins[:3] if program.stages[ins.stage].coupled else None
                tasks.append(Task(ins, rank, seconds, ((("rank", rank), seconds),), meeting=meeting))
    return tasks


def _add_messages(
    tasks: list[Task], place: dict[tuple[int, Op, int, int], int], program: Program, times: Times
) -> None:
    cluster, devices = times.plan.cluster, times.plan.devices
    users = {
        (ins.peer, rank, *ins[2:5], *ins[6:8]): ins.stage
        for rank, instructions in enumerate(program.ranks)
        for ins in instructions
        if ins.op is Op.RECV
    }
    for rank, instructions in enumerate(program.ranks):
        for ins in instructions:
            if ins.op is not Op.SEND:
                continue
            a, b = devices[rank], devices[ins.peer]
            op = Op.B if ins.gradient else Op.F
            maker = place[rank, op, ins.stage, ins.micro_batch]
            made = min(times.inside(rank, ins, tasks[maker].what) - tasks[maker].seconds, 0.0) if ins.inside else 0.0
            user = tasks[place[ins.peer, op, users[rank, ins.peer, *ins[2:5], *ins[6:8]], ins.micro_batch]]
            size, before = program.edge_by_name[ins.name].value.num_bytes(ins.rows), None
            for channel in cluster.route(a, b):
                seconds = size / cluster.channel_bandwidth(channel)
                hop = Task(ins, rank, seconds, ((("channel", channel), seconds),), along=before)
                hop.after.append((maker, made))
                user.after.append((len(tasks), cluster.latency(a, b)))
                before = len(tasks)
                tasks.append(hop)


def _add_sums(tasks: list[Task], program: Program, times: Times) -> None:
    backwards: defaultdict[int, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        if task.what.op is Op.B:
            backwards[task.rank].append(index)
    sums = {ins.name: ins for instructions in program.ranks for ins in instructions if ins.op in _SUMS}
    groups: dict[tuple[int, ...], int] = {}  # sums over the same ranks follow one another
    for name, ins in sums.items():
        seconds, hops = times.reduce(name)
        ranks = program.bucket_by_name[name].ranks
        after = [(index, 0.0) for rank in ranks for index in backwards[rank]]
        held = [(("channel", channel), busy) for channel, busy in hops]
        held.append((("sums", groups.setdefault(ranks, len(groups))), seconds))
        tasks.append(Task(ins, ranks[0], seconds, tuple(held), after))


def replayed(tasks: list[Task], order: list[int]) -> float:
    """When all are done, if each resource is given to its tasks in this order, as soon as they can have it.

    Nothing may come before what it waits for, and those that meet must follow one another.
    """
    free: defaultdict[tuple[str, int], float] = defaultdict(float)
    starts, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    position = 0
    while position < len(order):
        group = [order[position]]
        meeting = tasks[group[0]].meeting
        while meeting and position + len(group) < len(order) and tasks[order[position + len(group)]].meeting == meeting:
            group.append(order[position + len(group)])
        earliest = [ends[earlier] + lag for index in group for earlier, lag in tasks[index].after]
        earliest += [starts[before] for index in group if (before := tasks[index].along) is not None]
        start = max([0.0, *earliest, *(free[held] for index in group for held, _ in tasks[index].holds)])
        for index in group:
            starts[index], ends[index] = start, start + tasks[index].seconds
            for held, seconds in tasks[index].holds:
                free[held] = start + seconds
        position += len(group)
    return max(ends)
