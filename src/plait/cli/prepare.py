"""From the words on the command line to a captured model with costs, and to a plan."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from plait.cli.asked import Asked
from plait.cluster import Cluster
from plait.cost import Costs, estimate_costs
from plait.cost.estimate import is_here
from plait.errors import PlaitError
from plait.graph import Graph, Model, build_graph
from plait.jobs import Job, load_job
from plait.plan import Plan
from plait.plan.batches import describe
from plait.search import Answer, Problem, Wishes, judged_exactly, limits_of, with_shared_layers, with_stages_of
from plait.search.wishes import check_wishes

_EXAMPLE_ROWS = 8


@dataclass(frozen=True)
class Prepared:
    """A job captured and costed for a cluster."""

    job: Job
    model: Model
    cluster: Cluster
    costs: Costs
    batch_size: int
    example: Any
    wishes: Wishes = field(default_factory=Wishes)

    @property
    def graph(self) -> Graph:
        return self.model.graph

    @property
    def problem(self) -> Problem:
        return Problem(self.model.graph, self.costs, self.cluster, self.batch_size, describe(self.example))

    def plans(self, asked: Asked) -> Answer:
        answer = asked.plans(self.problem)
        return replace(answer, candidates=judged_exactly(answer.candidates, self.model, self.problem))

    def for_plan(self, plan: Plan) -> "Prepared":
        """With what the stages of a plan exchange inside their tensor groups."""
        return replace(self, costs=with_stages_of(self.costs, self.model, [plan]))

    def on(self, cluster: Cluster) -> "Prepared":
        """The same job costed for another cluster."""
        costs = with_shared_layers(self._costs_on(cluster), self.model, cluster, self.batch_size, self.wishes)
        return replace(self, cluster=cluster, costs=costs)

    def _costs_on(self, cluster: Cluster) -> Costs:
        there, here = ({d.kind for d in c.devices} for c in (cluster, self.cluster))
        if there == here:
            return self.costs
        if any(is_here(cluster, kind) for kind in there) or any(is_here(self.cluster, kind) for kind in here):
            raise PlaitError(
                f"{cluster.name} has other devices than {self.cluster.name}, whose costs are measured on this machine: "
                "measured and computed costs do not compare. Plan for a cluster file with either kind of device."
            )
        rows = micro_rows(self.batch_size, None)
        return estimate_costs(self.model, self.example, cluster, self.job.optimizer, largest_rows=rows)


@dataclass(frozen=True)
class CapturedJob:
    """A job's model captured on a batch like the one it will be trained on."""

    job: Job
    model: Model
    batch_size: int
    example: Any


def capture_job(
    job_name: str, cluster: Cluster | None, *, batch_size: int | None, dtype: str, seed: int
) -> CapturedJob:
    """With real weights only where they are needed to measure: on none at all where no cluster is given."""
    job = load_job(job_name)
    rows = batch_size or job.batch_size
    here = cluster is not None and all(is_here(cluster, device.kind) for device in cluster.devices)
    torch.manual_seed(seed)
    with torch.device("cpu" if here else "meta"):
        module = job.model()
    module = module.to(getattr(torch, dtype))
    example = next(iter(job.batches(min(rows, _EXAMPLE_ROWS), seed)), None)
    if example is None:
        raise PlaitError(f"{job_name} gave no batch: its batches() must yield at least one.")
    example = pytree.tree_map_only(
        Tensor, lambda t: t.to(getattr(torch, dtype)) if t.is_floating_point() else t, example
    )
    if not here:
        example = pytree.tree_map_only(Tensor, lambda t: t.to("meta"), example)
    return CapturedJob(job, build_graph(module, example, loss=job.loss, name=job.name), rows, example)


def prepare(
    job_name: str, cluster: Cluster, *, batch_size: int | None, dtype: str, seed: int, wishes: Wishes | None = None
) -> Prepared:
    """Captures the job's model and finds its costs; wishes that cannot hold are told in between."""
    wishes = wishes or Wishes()
    captured = capture_job(job_name, cluster, batch_size=batch_size, dtype=dtype, seed=seed)
    job, model, rows, example = captured.job, captured.model, captured.batch_size, captured.example
    check_wishes(wishes, cluster, rows)
    limits_of(wishes.pins, model.graph)
    costs = estimate_costs(model, example, cluster, job.optimizer, largest_rows=micro_rows(rows, wishes.micro_batches))
    costs = with_shared_layers(costs, model, cluster, rows, wishes)
    return Prepared(job, model, cluster, costs, rows, example, wishes)


def micro_rows(batch_size: int, micro_batches: int | None) -> int:
    """Rows of a micro-batch; of the largest that is looked at where their number is still open."""
    return max(1, batch_size // (micro_batches or 4))


def prepare_plan(plan: Plan, job_name: str | None, *, dtype: str, seed: int) -> Prepared:
    """The job a plan was made for, captured again and costed for the plan's cluster."""
    prepared = prepare(
        job_name or plan.model,
        plan.cluster,
        batch_size=plan.batch_size,
        dtype=dtype,
        seed=seed,
        wishes=Wishes(micro_batches=plan.micro_batches, tensor=1),
    )
    return prepared.for_plan(plan) if plan.fingerprint == prepared.graph.fingerprint else prepared
