"""How a model's layers would be shared by the devices of a tensor group: found from its code, kept in costs as data.

For the search one way for each number of devices, over the whole chain, chosen for the fastest links inside a host. A
stage is a part of the chain, and what its values are made whole for at its ends is not in that, so the plans that are
found are judged again with their stages' own (`judged_exactly`).
"""

from collections.abc import Iterable
from dataclasses import replace

from plait.cluster import Cluster
from plait.cost import Costs, group_links, sync_seconds
from plait.errors import PlaitError
from plait.graph import Model
from plait.graph.sharding import Sharding
from plait.graph.sharding.choose import choose_split
from plait.graph.sharding.measure import sharding_of
from plait.plan import Plan
from plait.search.bounds import plan_bound
from plait.search.judge import Candidate, evaluate
from plait.search.problem import Problem
from plait.search.wishes import Wishes, tensor_degrees

_MICRO_BATCHES = 8  # of a step, as far as the choice depends on them
_BYTES = 1e8


def with_shared_layers(costs: Costs, model: Model, cluster: Cluster, batch_size: int, wishes: Wishes) -> Costs:
    """The costs with a way to share all layers for every number of devices that may."""
    degrees = tensor_degrees(cluster, wishes)
    return replace(costs, shardings=tuple(_of_chain(costs, model, cluster, batch_size, n) for n in degrees))


def _of_chain(costs: Costs, model: Model, cluster: Cluster, batch_size: int, degree: int) -> Sharding:
    """The choice weighs exchanges against the gradients that need not be summed over all devices."""
    num_atoms, devices = len(model.graph.atoms), list(range(len(cluster.devices)))
    host = max((cluster.devices_of(host.name) for host in cluster.hosts), key=len)
    group = tuple(host[:degree])
    links = group_links(group, [group], cluster)
    rows = max(1, batch_size * degree // (_MICRO_BATCHES * len(devices)))
    kind = cluster.devices[group[0]]
    split = choose_split(
        model,
        0,
        num_atoms,
        degree,
        latency=links.latency,
        seconds_per_byte=links.seconds_per_byte,
        rows=rows,
        atom_seconds=[
            sum(costs.seconds(kind.kind.name, phase, atom, atom + 1, rows) for phase in ("forward", "backward"))
            / kind.speed
            for atom in range(num_atoms)
        ],
        gradient_seconds_per_byte=_seconds_per_gradient_byte(devices, cluster) / _MICRO_BATCHES,
    )
    return sharding_of(model, 0, num_atoms, degree, split)


def _seconds_per_gradient_byte(devices: list[int], cluster: Cluster) -> float:
    ways = ("ring", "hierarchical")
    return min(sync_seconds(way, _BYTES, devices, cluster)[0] for way in ways) / _BYTES


def with_stages_of(costs: Costs, model: Model, plans: Iterable[Plan]) -> Costs:
    """The costs with what the stages of these plans exchange and share, to the last byte."""
    stages = {
        (s.start, s.end, s.tensor, tuple(sorted(s.split.items()))) for plan in plans for s in plan.stages if s.split
    }
    known = [sharding_of(model, start, end, tensor, dict(split)) for start, end, tensor, split in sorted(stages)]
    return replace(costs, shardings=(*known, *costs.shardings))


def judged_exactly(candidates: tuple[Candidate, ...], model: Model, problem: Problem) -> tuple[Candidate, ...]:
    """Candidates with the splits and exchanges their stages really have, best first; what then does not fit is left
    out."""
    plans = [_as_split(candidate.plan, model) for candidate in candidates]
    costs = with_stages_of(problem.costs, model, plans)
    found = []
    why: PlaitError | None = None
    for candidate, plan in zip(candidates, plans, strict=True):
        if all(stage.tensor == 1 for stage in plan.stages):
            found.append(candidate)
            continue
        try:
            found.append(replace(evaluate(plan, problem.graph, costs), bound=plan_bound(plan, problem.graph, costs)))
        except PlaitError as error:
            why = why or error
    if not found and why is not None:
        raise why
    return tuple(sorted(found, key=lambda candidate: candidate.step_seconds))


def _as_split(plan: Plan, model: Model) -> Plan:
    """The plan with those parameters split that stay split in the stages' own code."""
    stages = tuple(
        replace(s, split=dict(sharding_of(model, s.start, s.end, s.tensor, s.split).split)) if s.split else s
        for s in plan.stages
    )
    return replace(plan, stages=stages)
