"""What `import plait` offers: plan a model, train it under the plan."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from plait.cluster import Cluster, load_cluster
from plait.cost import OptimizerFactory, estimate_costs
from plait.graph import Loss, batch_rows, build_graph
from plait.jobs.optimizers import adamw
from plait.plan import Plan
from plait.plan.batches import describe
from plait.run import parallelize
from plait.search import (
    DEFAULT_BUDGET,
    Pin,
    Problem,
    Wishes,
    as_pins,
    find_plans,
    judged_exactly,
    limits_of,
    with_shared_layers,
)


def plan(
    model: nn.Module,
    example_batch: Any,
    *,
    cluster: Cluster | str | Path,
    batch_size: int | None = None,
    loss: Loss | None = None,
    optimizer: OptimizerFactory = adamw,
    stages: int | None = None,
    replicas: tuple[int, ...] | None = None,
    micro_batches: int | None = None,
    schedule: str | None = None,
    pins: Sequence[str | Pin] = (),
    recompute: bool | None = None,
    sync: str | None = None,
    overlap: str | None = None,
    bucket_bytes: int | None = None,
    tensor: int | None = None,
    budget_seconds: float = DEFAULT_BUDGET,
    name: str = "model",
) -> Plan:
    """The fastest plan found for training `model` on `cluster`; what is None is chosen.

    `example_batch` shows structure and shapes; `batch_size` is the global batch (the example's rows if None).
    `optimizer` is only asked how much memory and time it takes. `pins` say where stages may begin and end, in words
    such as "cut before blocks.2" or "keep embed, head" (`plait.search.pins`). `tensor` devices share each layer.
    `budget_seconds` is for the search.
    """
    wishes = Wishes(
        replicas, stages, micro_batches, schedule, as_pins(pins), recompute, sync, overlap, bucket_bytes, tensor
    )
    found = cluster if isinstance(cluster, Cluster) else load_cluster(str(cluster))
    captured = build_graph(model, example_batch, loss=loss, name=name)
    limits_of(wishes.pins, captured.graph)  # pins that cannot hold are told before anything is measured
    rows = batch_size or batch_rows(example_batch)
    costs = estimate_costs(captured, example_batch, found, optimizer, largest_rows=rows)
    problem = Problem(
        captured.graph, with_shared_layers(costs, captured, found, rows, wishes), found, rows, describe(example_batch)
    )
    answer = find_plans(
        problem.graph,
        problem.costs,
        found,
        batch_size=rows,
        wishes=wishes,
        batch=problem.batch,
        budget_seconds=budget_seconds,
    )
    best, *_ = judged_exactly(answer.candidates, captured, problem)
    return best.plan


__all__ = ["parallelize", "plan"]
