"""From another tool's profile to plans: what `prepare` does for a job, without a model."""

from dataclasses import dataclass, replace
from pathlib import Path

from plait.cluster import Cluster
from plait.cost import Costs, imported_costs
from plait.graph import Graph
from plait.graph.profiles import load_profile, profile_graph
from plait.plan import Plan, ProfileSource
from plait.search import Answer, Wishes, find_plans

_ROWS_PER_DEVICE = 8  # of the batch to plan for, at least, where the user names none


@dataclass(frozen=True)
class Profiled:
    """A profile as graph and costs for a cluster."""

    graph: Graph
    costs: Costs
    cluster: Cluster
    batch_size: int
    source: ProfileSource

    def plans(self, wishes: Wishes) -> Answer:
        answer = find_plans(self.graph, self.costs, self.cluster, batch_size=self.batch_size, wishes=wishes)
        marked = (replace(c, plan=self.source.mark(c.plan)) for c in answer.candidates)
        return replace(answer, candidates=tuple(marked))


def prepare_profile(path: Path, cluster: Cluster, *, batch_size: int | None, profile_batch: int | None) -> Profiled:
    """Reads the profile; its times are those of the cluster's first kind of device."""
    profile = load_profile(path, rows=profile_batch)
    graph = profile_graph(profile)
    kinds = list({device.kind.name: device.kind for device in cluster.devices}.values())
    costs = imported_costs(profile, graph, kinds=kinds)
    rows = batch_size or max(profile.rows, _ROWS_PER_DEVICE * len(cluster.devices))
    return Profiled(graph, costs, cluster, rows, ProfileSource(str(path), profile_batch))


def prepare_profile_plan(plan: Plan, source: ProfileSource, path: Path | None) -> Profiled:
    """The profile a plan was made from, read again from where it was or from `path`."""
    return prepare_profile(
        path or Path(source.file), plan.cluster, batch_size=plan.batch_size, profile_batch=source.rows
    )
