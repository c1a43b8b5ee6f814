"""In which order the gradient sums of a plan go out when the next step is to use them (`StagePlan.sum_order`).

One sum after the other goes over a stage's links. Of those whose gradients are final when the links become free, the
one goes first that the next step reads first: what a backward has just finished overtakes what waits since longer. So
what is left when the backward ends is spread over the layers rather than being all of the first ones, and the next
forward hardly waits for it.
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
        replace(stage, sum_order=_order(tables, times, index) if stage.replicas > 1 else ())
        for index, stage in enumerate(plan.stages)
    )
    return replace(plan, stages=stages)


def _order(tables: Program, times: Times, stage: int) -> tuple[int, ...]:
    """Numbers of the stage's buckets."""
    table, micro_batch = tables.stages[stage], len(tables.micro_batch_rows) - 1
    rank, (first, last) = table.ranks[0], table.rows[micro_batch][0]
    backward = Instruction(Op.B, stage, micro_batch, first_row=first, last_row=last)
    own = [bucket for bucket in tables.buckets if bucket.stage == stage]
    to_come = sorted(
        (times.inside(rank, Instruction(Op.REDUCE, name=bucket.name), backward), number)
        for number, bucket in enumerate(own)
    )
    to_come.reverse()
    at_hand: list[tuple[tuple[tuple[int, int], ...], int]] = []  # by who reads them
    order: list[int] = []
    free = 0.0
    while to_come or at_hand:
        if not at_hand:
            free = max(free, to_come[-1][0])
        while to_come and to_come[-1][0] <= free:
            _, number = to_come.pop()
            heappush(at_hand, (own[number].readers, number))
        _, number = heappop(at_hand)
        order.append(number)
        free += times.reduce(own[number].name)[0]
    return tuple(order)
