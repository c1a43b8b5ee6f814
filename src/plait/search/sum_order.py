"""In which order the gradient sums of a plan go out when the next step is to use them (`StagePlan.sums_as_final`).

Sums that can begin before a stage's last backward ends go as their gradients become final. When it ends all others are
final too and wait for the links: from then on those go first that the next step reads first.
"""

from dataclasses import replace

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
        replace(stage, sums_as_final=_begun(tables, times, index) if stage.replicas > 1 else None)
        for index, stage in enumerate(plan.stages)
    )
    return replace(plan, stages=stages)


def _begun(tables: Program, times: Times, stage: int) -> int | None:
    """How many of a stage's sums begin before its last backward ends; None where all do."""
    table, micro_batch = tables.stages[stage], len(tables.micro_batch_rows) - 1
    rank, (first, last) = table.ranks[0], table.rows[micro_batch][0]
    found = (bucket for bucket in tables.buckets if bucket.stage == stage and rank in bucket.ranks)
    own = sorted(found, key=lambda bucket: bucket.readers, reverse=True)
    backward = Instruction(Op.B, stage, micro_batch, first_row=first, last_row=last)
    end = times.compute(rank, Op.B, stage, last - first)
    free = 0.0
    for number, bucket in enumerate(own):
        begun = max(free, times.inside(rank, Instruction(Op.REDUCE, name=bucket.name), backward))
        if begun >= end:
            return number
        free = begun + times.reduce(bucket.name)[0]
    return None
