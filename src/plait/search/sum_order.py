"""In which order the gradient sums of a plan go out when the next step is to use them (`StagePlan.sum_order`).

Sums of a stage follow one another. Sum j takes p_j seconds, may begin at r_j, when the last backward has made its
gradients, and is due at d_j, when the next forward comes to its parameters if nothing holds that up. The forward is
held up by as much as the latest of them is late, max C_j - d_j.

Jackson's rule: whenever the links are free, of the sums that may begin the one goes that is due first. So what is left
when the backward ends is spread over the layers rather than being all of the first ones. Where a long sum that is due
late has just begun when the ones that matter can (Carlier's interfering job), it is held back until they have gone, and
the rule is followed again; the best order found counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from plait.cost import Costs
from plait.graph import Graph
from plait.plan import Plan
from plait.program import Instruction, Op, Program
from plait.search.bounds.passage import splits_backwards, step_tables
from plait.simulate.times import Times


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
    release: float
    seconds: float
    due: float


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
        )
        for bucket in tables.buckets
        if bucket.stage == stage and rank in bucket.ranks
    ]


def least_late(jobs: Sequence[Job]) -> tuple[int, ...]:
    """An order in which the latest of the jobs is hardly later than it must be.

    >>> least_late([Job(0, 3, 9), Job(1, 3, 4), Job(1, 1, 20)])  # the first would hold up the second
    (1, 0, 2)
    """
    released = [job.release for job in jobs]
    best: tuple[float, tuple[int, ...]] | None = None
    for _ in jobs:
        order = _by_jackson(jobs, released)
        starts = _starts(jobs, order)
        lateness = [start + jobs[j].seconds - jobs[j].due for j, start in zip(order, starts, strict=True)]
        found = max(lateness), order
        best = found if best is None or found[0] < best[0] else best
        latest = lateness.index(found[0])
        first = latest  # of those that follow one another without a pause up to the latest
        while first and starts[first] > jobs[order[first]].release:
            first -= 1
        in_the_way = [place for place in range(first, latest) if jobs[order[place]].due > jobs[order[latest]].due]
        if not in_the_way:
            break  # those between begin as soon as they can, and none of them is due later: no order is better
        place = in_the_way[-1]
        held = min(jobs[j].release for j in order[place + 1 : latest + 1])
        if held <= released[order[place]]:
            break
        released[order[place]] = held
    return best[1] if best is not None else ()


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
