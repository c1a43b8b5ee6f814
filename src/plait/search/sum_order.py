"""In which order the gradient sums of a plan go out when the next step is to use them (`StagePlan.sum_order`).

Sums of a stage follow one another. Sum j takes p_j seconds, may begin at r_j, when the last backward has made its
gradients, and is due at d_j, when the next forward comes to its parameters if nothing holds that up. Updates aside,
the forward is held up by as much as the latest of them is late, max C_j - d_j.

Jackson's rule: whenever the links are free, of the sums that may begin the one goes that is due first. So what is left
when the backward ends is spread over the layers rather than being all of the first ones. Where a long sum that is due
late has just begun when the ones that matter can (Carlier's interfering job), it is held back until they have gone, and
the rule is followed again. Of a few such orders, and the one in which gradients become final, the one counts after
which the forward ends first, updates included.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice

from plait.cost import Costs
from plait.graph import Graph
from plait.plan import Plan
from plait.program import Instruction, Op, Program
from plait.search.bounds.passage import splits_backwards, step_tables
from plait.simulate.times import Times

_TRIES = 8


def with_sum_order(plan: Plan, graph: Graph, costs: Costs) -> Plan:
    """The plan with the order for each of its stages; weight gradients that are put off become final as needed."""
    if plan.overlap != "full" or plan.most_replicas == 1 or splits_backwards(plan):
        return plan
    tables, _ = step_tables(plan, graph)
    times = Times(tables, plan, costs)
    stages = tuple(
        replace(stage, sum_order=least_late(_jobs(tables, times, index)) if stage.replicas > 1 else ())
        for index, stage in enumerate(plan.stages)
    )
    return replace(plan, stages=stages)


@dataclass(frozen=True)
class Job:
    """A sum, and how long the update takes that follows it."""

    release: float
    seconds: float
    due: float
    update: float = 0.0


def _jobs(tables: Program, times: Times, stage: int) -> list[Job]:
    """The sums of the stage's buckets, in seconds from the beginning of its last backward."""
    table, micro_batch = tables.stages[stage], len(tables.micro_batch_rows) - 1
    rank, (first, last) = table.ranks[0], table.rows[micro_batch][0]
    forward, backward = (Instruction(op, stage, micro_batch, first_row=first, last_row=last) for op in (Op.F, Op.B))
    end = times.compute(rank, Op.B, stage, last - first)
    return [
        Job(
            times.inside(rank, Instruction(Op.REDUCE, name=bucket.name), backward),
            times.reduce(bucket.name)[0],
            end + times.inside(rank, Instruction(Op.AWAIT, name=bucket.name), forward),
            times.step(rank, bucket.name),
        )
        for bucket in tables.buckets
        if bucket.stage == stage and rank in bucket.ranks
    ]


def least_late(jobs: Sequence[Job]) -> tuple[int, ...]:
    """The order, of those looked at, after which the next forward goes on soonest.

    >>> least_late([Job(0, 3, 9), Job(1, 3, 4), Job(1, 1, 20)])  # the first would hold up the second
    (1, 0, 2)
    """
    if not jobs:
        return ()
    tried = [tuple(sorted(range(len(jobs)), key=lambda j: jobs[j].release)), *islice(_held_back(jobs), _TRIES)]
    return min(tried, key=lambda order: _delay(jobs, order))


def _held_back(jobs: Sequence[Job]) -> Iterator[tuple[int, ...]]:
    """By Jackson's rule, and then with one more job held back each time that was in the way of the latest."""
    released = [job.release for job in jobs]
    while True:
        order = _by_jackson(jobs, released)
        yield order
        starts = _starts(jobs, order)
        lateness = [start + jobs[j].seconds - jobs[j].due for j, start in zip(order, starts, strict=True)]
        latest = lateness.index(max(lateness))
        first = latest  # of those that follow one another without a pause up to the latest
        while first and starts[first] > jobs[order[first]].release:
            first -= 1
        in_the_way = [place for place in range(first, latest) if jobs[order[place]].due > jobs[order[latest]].due]
        if not in_the_way:
            return  # those between begin as soon as they can, and none of them is due later: no order is less late
        place = in_the_way[-1]
        held = min(jobs[j].release for j in order[place + 1 : latest + 1])
        if held <= released[order[place]]:
            return
        released[order[place]] = held


def _delay(jobs: Sequence[Job], order: Sequence[int]) -> float:
    """By how much the next forward ends later than it would with neither sums nor updates.

    A rank that waits for one sum updates meanwhile what others have brought.
    """
    there = [(start + jobs[j].seconds, j) for j, start in zip(order, _starts(jobs, order), strict=True)][::-1]
    brought = {j: end for end, j in there}
    updated: set[int] = set()
    delay = 0.0
    for j in sorted(range(len(jobs)), key=lambda j: jobs[j].due):
        while brought[j] > jobs[j].due + delay and there and there[-1][0] < brought[j]:
            end, other = there.pop()
            if other not in updated:
                delay = max(delay, end - jobs[j].due) + jobs[other].update
                updated.add(other)
        if j not in updated:
            delay = max(delay, brought[j] - jobs[j].due) + jobs[j].update
            updated.add(j)
    return delay


def _by_jackson(jobs: Sequence[Job], released: Sequence[float]) -> tuple[int, ...]:
    to_come = sorted(range(len(jobs)), key=lambda j: (released[j], j), reverse=True)
    waiting: list[tuple[float, int]] = []
    order: list[int] = []
    free = 0.0
    while to_come or waiting:
        if not waiting:
            free = max(free, released[to_come[-1]])
        while to_come and released[to_come[-1]] <= free:
            j = to_come.pop()
            heappush(waiting, (jobs[j].due, j))
        order.append(heappop(waiting)[1])
        free += jobs[order[-1]].seconds
    return tuple(order)


def _starts(jobs: Sequence[Job], order: Sequence[int]) -> list[float]:
    starts: list[float] = []
    free = 0.0
    for j in order:
        starts.append(max(free, jobs[j].release))
        free = starts[-1] + jobs[j].seconds
    return starts
