"""From another tool's profile to plans: what `prepare` does for a job, without a model."""

from dataclasses import dataclass, replace
from pathlib import Path

from plait.cli.asked import Asked
from plait.cli.prepare import Prepared, prepare_plan
from plait.cluster import Cluster, DeviceKind
from plait.cost import Costs, imported_costs
from plait.errors import PlaitError
from plait.graph import Graph
from plait.graph.profiles import Profile, load_profile, profile_graph
from plait.plan import Plan, ProfileSource, profile_source
from plait.search import Answer, Problem

_ROWS_PER_DEVICE = 8  # of the batch to plan for, at least, where the user names none


@dataclass(frozen=True)
class Profiled:
    """A profile as graph and costs for a cluster."""

    profile: Profile
    graph: Graph
    costs: Costs
    cluster: Cluster
    batch_size: int
    source: ProfileSource

    @property
    def problem(self) -> Problem:
        return Problem(self.graph, self.costs, self.cluster, self.batch_size)

    def plans(self, asked: Asked) -> Answer:
        answer = asked.plans(self.problem)
        marked = (replace(c, plan=self.source.mark(c.plan)) for c in answer.candidates)
        return replace(answer, candidates=tuple(marked))

    def on(self, cluster: Cluster) -> "Profiled":
        """The same profile on another cluster; its times stay those of this one's first kind of device."""
        costs = imported_costs(self.profile, self.graph, kinds=[self.cluster.devices[0].kind, *_kinds(cluster)])
        return replace(self, cluster=cluster, costs=costs)


def prepare_profile(path: Path, cluster: Cluster, *, batch_size: int | None, profile_batch: int | None) -> Profiled:
    """Reads the profile; its times are those of the cluster's first kind of device."""
    profile = load_profile(path, rows=profile_batch)
    graph = profile_graph(profile)
    costs = imported_costs(profile, graph, kinds=_kinds(cluster))
    rows = batch_size or max(profile.rows, _ROWS_PER_DEVICE * len(cluster.devices))
    return Profiled(profile, graph, costs, cluster, rows, ProfileSource(str(path), profile_batch))


def prepare_profile_plan(plan: Plan, source: ProfileSource, path: Path | None) -> Profiled:
    """The profile a plan was made from, read again from where it was or from `path`."""
    return prepare_profile(
        path or Path(source.file), plan.cluster, batch_size=plan.batch_size, profile_batch=source.rows
    )


def prepare_any(plan: Plan, job: str | None, profile: Path | None, *, dtype: str, seed: int) -> Prepared | Profiled:
    """The job or the profile that a plan was made for, costed for the plan's cluster."""
    source = profile_source(plan)
    if source is not None and job is None:
        return prepare_profile_plan(plan, source, profile)
    if source is not None or profile is not None:
        flag, made_from = ("--job", "a profile") if source is not None else ("--profile", f"the job {plan.model}")
        raise PlaitError(f"{flag} does not apply: the plan was made from {made_from}. Leave it out.")
    return prepare_plan(plan, job, dtype=dtype, seed=seed)


def _kinds(cluster: Cluster) -> list[DeviceKind]:
    return list({device.kind.name: device.kind for device in cluster.devices}.values())
