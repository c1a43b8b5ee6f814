"""The best order of one plan's computations, messages and gradient sums, as a constraint programme (CP-SAT).

With an interval for every task (`tasks`), minimise T so that

- `_precedences`      a task starts when what it comes after has ended and has arrived; the ranks of a coupled stage
                      start together;
- `_alone`            intervals that hold the same rank or channel do not overlap;
- `_memory`           what the forwards of a rank save until their backwards fits into its memory;
- `_numbering`        micro-batches of equal size enter the first stage in the order of their numbers.

That is the simulator's model without its program's waits for posted receivers and freed buffers, which can only
delay: the optimum is a lower truth, that a program may miss by a little.

Seconds are rounded down to integers, so the programme's optimum is never above the true one. The order found is then
timed again in floating point (`replayed`): the seconds returned are those of a real order.
"""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import floor
from typing import Any

from plait.errors import PlaitError
from plait.graph import Graph
from plait.program import Op
from plait.search.bounds.room import room_for_activations
from plait.search.exact.tasks import Task, replayed
from plait.simulate.times import Times

_WORKERS = 8  # ways of searching, which take turns where there are fewer cores: single ones get stuck now and then
UNITS = 1_000_000  # the longest step looked for, in the programme's units


@dataclass(frozen=True)
class Order:
    """`seconds` of the best order found, if one was, and what no order can beat; `ranks` are their computations."""

    seconds: float
    proved: float
    ranks: tuple[tuple[str, ...], ...] = ()


def best_order(tasks: list[Task], times: Times, graph: Graph, *, below: float, time_limit: float) -> Order:
    """The best order that takes less than `below` seconds until everything is summed; infinite where there is none."""
    cp_model = load_solver()
    unit = below / UNITS
    model = cp_model.CpModel()
    starts = [model.new_int_var(0, UNITS, "") for _ in tasks]
    sizes = [int(task.seconds / unit) for task in tasks]
    end = model.new_int_var(0, UNITS, "end")
    for start, size in zip(starts, sizes, strict=True):
        model.add(end >= start + size)
    _precedences(model, tasks, starts, sizes, unit)
    _alone(model, tasks, starts, unit)
    _memory(model, tasks, starts, sizes, times, graph)
    _numbering(model, tasks, starts, times)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = _WORKERS
    solver.parameters.max_time_in_seconds = time_limit
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Order(float("inf"), below)
    proved = solver.best_objective_bound * unit
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Order(float("inf"), proved)
    order = _sequence(tasks, [solver.value(start) for start in starts], unit)
    ranks: list[list[str]] = [[] for _ in times.plan.devices]
    for index in order:
        what = tasks[index].what
        if what.op in (Op.F, Op.B):
            ranks[tasks[index].rank].append(f"{what.stage}{what.op}{what.micro_batch}")
    return Order(replayed(tasks, order), proved, tuple(map(tuple, ranks)))


def load_solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise PlaitError(
            'the exact solver needs OR-tools, which is not installed. Run: pip install "plait[exact]".'
        ) from error
    return cp_model


def _precedences(model: Any, tasks: list[Task], starts: list[Any], sizes: list[int], unit: float) -> None:
    together: dict[Any, int] = {}
    for index, task in enumerate(tasks):
        for earlier, lag in task.after:
            model.add(starts[index] >= starts[earlier] + sizes[earlier] + floor(lag / unit))
        if task.along is not None:
            model.add(starts[index] >= starts[task.along])
        if task.meeting is not None:
            model.add(starts[index] == starts[together.setdefault(task.meeting, index)])


def _alone(model: Any, tasks: list[Task], starts: list[Any], unit: float) -> None:
    holders: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    for task, start in zip(tasks, starts, strict=True):
        for held, seconds in task.holds:
            holders[held].append(model.new_fixed_size_interval_var(start, int(seconds / unit), ""))
    for found in holders.values():
        model.add_no_overlap(found)


def _memory(model: Any, tasks: list[Task], starts: list[Any], sizes: list[int], times: Times, graph: Graph) -> None:
    plan, stages = times.plan, times.program.stages
    room = room_for_activations(plan, graph, times.costs)
    backward = {(t.rank, *t.what[1:3]): index for index, t in enumerate(tasks) if t.what.op is Op.B}
    kept: defaultdict[int, list[tuple[Any, int]]] = defaultdict(list)
    for index, task in enumerate(tasks):
        if task.what.op is Op.F:
            kind = plan.cluster.devices[plan.devices[task.rank]].kind.name
            table, back = stages[task.what.stage], backward[task.rank, *task.what[1:3]]
            saved = times.costs.saved_bytes(kind, table.start, table.end, task.what.rows)
            until = starts[back] + sizes[back]
            span = model.new_interval_var(starts[index], model.new_int_var(0, UNITS, ""), until, "")
            kept[task.rank].append((span, saved))
    for rank, found in kept.items():
        spans, saved_bytes = zip(*found, strict=True)
        # Room for less than one: the plan does not fit; that is for `check_memory` to say.
        if sum(saved_bytes) > room[rank] >= max(saved_bytes):
            model.add_cumulative(spans, saved_bytes, room[rank])


def _numbering(model: Any, tasks: list[Task], starts: list[Any], times: Times) -> None:
    sizes = times.program.micro_batch_rows
    entering: dict[int, Any] = {}
    for task, start in zip(tasks, starts, strict=True):
        if task.what.op is Op.F and task.what.stage == 0:
            entering.setdefault(task.what.micro_batch, start)
    for first in range(len(sizes) - 1):
        if sizes[first] == sizes[first + 1]:
            model.add(entering[first] <= entering[first + 1])


def _sequence(tasks: list[Task], starts: list[int], unit: float) -> list[int]:
    """All tasks so that each comes after what it waits for and after those that had its resources before it.

    Of those that start together on a resource, what takes no time goes first. Tasks that meet are side by side.
    """
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        groups[index if task.meeting is None else task.meeting].append(index)
    group_of = {index: key for key, members in groups.items() for index in members}
    waits = {key: {group_of[a] for i in members for a in tasks[i].needs} for key, members in groups.items()}
    depth: dict[Hashable, int] = {}
    for key in TopologicalSorter(waits).static_order():
        depth[key] = 1 + max((depth[earlier] for earlier in waits[key]), default=0)
    turns: defaultdict[tuple[str, int], list[tuple[int, bool, int, int]]] = defaultdict(list)
    for index, task in enumerate(tasks):
        for held, seconds in task.holds:
            turns[held].append((starts[index], int(seconds / unit) > 0, depth[group_of[index]], index))
    for turn in turns.values():
        for before, after in pairwise(sorted(turn)):
            waits[group_of[after[-1]]].add(group_of[before[-1]])
    try:
        ordered = list(TopologicalSorter(waits).static_order())
    except CycleError:  # messages that take no time each behind the other's first hop: any order of starts is real
        ordered = sorted(groups, key=lambda key: (starts[groups[key][0]], depth[key]))
    return [index for key in ordered for index in groups[key]]
