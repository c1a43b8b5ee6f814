"""The plan in the words of plain PyTorch, where it has any: what Plait is compared with on the bed.

One stage is DistributedDataParallel, several are `torch.distributed.pipelining` with its own schedule, their replicas
DistributedDataParallel again. Layers take the time of the plan's atoms, their parameters have those atoms' bytes.
"""

from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from plait.cost import Costs
from plait.emulate.dilation import Dilation, shrunk
from plait.errors import PlaitError
from plait.graph import Graph
from plait.plan import Plan, micro_batch_sizes

SCHEDULES = ("gpipe", "1f1b", "interleaved")


class Layer(BaseModel):
    """Consecutive atoms, of which the first has the parameters: seconds of a micro-batch on the bed, and bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    forward: float
    backward: float
    parameter_bytes: int


class PlainStage(BaseModel):
    """`output_bytes` are those of a micro-batch's rows that go to the next stage."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    layers: list[Layer]
    output_bytes: int


class PlainTask(BaseModel):
    """`stages` are by rank and then in order of that rank's stages; `update` is the optimiser's seconds by rank."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    schedule: str
    micro_batches: int
    pipelines: list[list[int]]  # the ranks of each, stage after stage
    stages: list[list[PlainStage]]
    update: list[float]


def plain_task(plan: Plan, graph: Graph, costs: Costs, dilation: Dilation) -> PlainTask:
    """Raises PlaitError where PyTorch has no words for the plan."""
    check_plain(plan)
    sizes = micro_batch_sizes(plan.batch_size, plan.micro_batches, plan.most_replicas)
    rows = sizes[0] // plan.stages[0].replicas
    stages: list[list[PlainStage]] = []
    update = []
    for rank in range(plan.num_ranks):
        device = plan.cluster.devices[plan.devices[rank]]
        slowing = dilation.time / device.speed
        own = [index for index in range(len(plan.stages)) if rank in plan.stage_ranks(index)]
        found = [_stage(plan, graph, costs, index, device.kind.name, rows, slowing, dilation) for index in own]
        stages.append(found)
        size = sum(p.num_bytes for index in own for p in plan.cut(graph)[index].parameters if p.trainable)
        count = sum(p.trainable for index in own for p in plan.cut(graph)[index].parameters)
        update.append(costs.optimizer[device.kind.name].seconds(size, count) * slowing)
    holders = [plan.stage_ranks(lane[0]) for lane in plan.positions]
    return PlainTask(
        schedule=plan.schedule,
        micro_batches=len(sizes),
        pipelines=[list(ranks) for ranks in zip(*holders, strict=True)],
        stages=stages,
        update=update,
    )


def check_plain(plan: Plan) -> None:
    """Can PyTorch's own data and pipeline parallelism express the plan?"""
    fix = "Plan with --schedule 1f1b (or gpipe, interleaved), equal --replicas and --recompute off."
    if len(plan.stages) > 1 and plan.schedule not in SCHEDULES:
        raise PlaitError(f"plain PyTorch has no schedule {plan.schedule!r}; it has {', '.join(SCHEDULES)}. {fix}")
    if len({stage.shares for stage in plan.stages}) > 1 or len(set(plan.stages[0].shares)) > 1:
        raise PlaitError(
            f"plain PyTorch splits each stage over equally many devices, in equal shares, not {plan.layout()}. {fix}"
        )
    if any(stage.recompute for stage in plan.stages):
        raise PlaitError(f"plain PyTorch's pipelining does not recompute stages, and this plan does. {fix}")


def _stage(
    plan: Plan, graph: Graph, costs: Costs, index: int, kind: str, rows: int, slowing: float, dilation: Dilation
) -> PlainStage:
    part = plan.cut(graph)[index]
    start, end = plan.stages[index].start, plan.stages[index].end
    parameter_bytes = dict.fromkeys(range(start, end), 0)
    for parameter in part.parameters:
        if parameter.trainable:
            parameter_bytes[next(atom for atom in parameter.atoms if start <= atom < end)] += parameter.num_bytes
    edges = sorted({start, end, *(atom for atom, size in parameter_bytes.items() if size)})
    layers = [
        Layer(
            forward=costs.seconds(kind, "forward", a, b, rows) * slowing,
            backward=costs.seconds(kind, "backward", a, b, rows) * slowing,
            parameter_bytes=shrunk(parameter_bytes[a], dilation.payload) if parameter_bytes[a] else 0,
        )
        for a, b in pairwise(edges)
    ]
    return PlainStage(layers=layers, output_bytes=shrunk(sum(v.num_bytes(rows) for v in part.sends), dilation.payload))
