"""In which order the gradient sums of a plan go out when the next step is to use them (`StagePlan.sum_order`).

Sums of a stage follow one another. Each is released when the last backward has made its gradients, from the last
atoms to the first, and due when the next forward comes to its parameters, from the first atoms to the last. Whenever
the links are free the one goes that is due first of those that are released: Jackson's rule, which makes the latest
sum as little late as can be when sums may be interrupted, and close to it when they may not.
"""

from dataclasses import replace
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
        replace(stage, sum_order=_order(tables, times, index)) if stage.replicas > 1 else stage
        for index, stage in enumerate(plan.stages)
    )
    return replace(plan, stages=stages)


def _order(tables: Program, times: Times, stage: int) -> tuple[int, ...]:
    """The stage's buckets, numbered as they are due."""
    own = sorted((bucket for bucket in tables.buckets if bucket.stage == stage), key=lambda bucket: bucket.readers)
    table, micro_batch = tables.stages[stage], len(tables.micro_batch_rows) - 1
    rank, (first, last) = table.ranks[0], table.rows[micro_batch][0]
    backward = Instruction(Op.B, stage, micro_batch, first_row=first, last_row=last)
    released = [times.inside(rank, Instruction(Op.REDUCE, name=bucket.name), backward) for bucket in own]
    to_come = sorted(range(len(own)), key=lambda number: (-released[number], -number))
    order: list[int] = []
    waiting: list[int] = []
    free = 0.0
    while to_come or waiting:
        if not waiting:
            free = max(free, released[to_come[-1]])
        while to_come and released[to_come[-1]] <= free:
            heappush(waiting, to_come.pop())
        order.append(heappop(waiting))
        free += times.reduce(own[order[-1]].name)[0]
    return tuple(order)
