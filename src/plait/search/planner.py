"""The noun `Planner`: candidates, each simulated, ranked by predicted step time.

For now a plan is a contiguous, cost-balanced partition over devices in the cluster's order; candidates are
uniform grids (or the layout the user fixed), several micro-batch counts and both schedules.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plait.cluster import Cluster
from plait.cost import Costs
from plait.errors import PlaitError
from plait.graph import Graph
from plait.plan import Plan, even_stages, validate
from plait.program import RankMemory, check_memory, check_program, compile_program, predict_memory
from plait.schedule import SCHEDULES
from plait.search.contradictions import check_stage_counts, limits_of
from plait.search.partition import balanced_boundaries
from plait.search.pins import Pin
from plait.simulate import Timeline, simulate


@dataclass(frozen=True)
class Wishes:
    """What the user fixed; None is for the planner to choose."""

    replicas: tuple[int, ...] | None = None  # per stage
    stages: int | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    pins: tuple[Pin, ...] = ()  # where stages may begin and end


@dataclass(frozen=True)
class Candidate:
    """A plan, its predicted timeline and memory."""

    plan: Plan
    timeline: Timeline
    memory: tuple[RankMemory, ...]


@dataclass(frozen=True)
class Answer:
    """Plans from best to worst, why others were left out, and a time no plan on this cluster can beat."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[tuple[str, str], ...]
    bound_seconds: float
    planning_seconds: float

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def find_plans(
    graph: Graph,
    costs: Costs,
    cluster: Cluster,
    *,
    batch_size: int,
    wishes: Wishes | None = None,
    batch: Any = None,
) -> Answer:
    """Simulates every candidate. Raises PlaitError, with the first reason, where none can run."""
    start = time.perf_counter()
    wishes = wishes or Wishes()
    found: list[Candidate] = []
    rejected: list[tuple[str, str]] = []
    for plan in _candidates(graph, costs, cluster, batch_size, wishes):
        plan = replace(plan, batch=batch)
        try:
            found.append(evaluate(plan, graph, costs))
        except PlaitError as error:
            rejected.append((_name(plan), str(error)))
    if not found:
        raise PlaitError(rejected[0][1] if rejected else _nothing_fits(cluster, batch_size, wishes))
    found.sort(key=lambda candidate: (candidate.timeline.step_seconds, candidate.plan.num_ranks))
    return Answer(tuple(found), tuple(rejected), work_bound(costs, cluster, batch_size), time.perf_counter() - start)


def evaluate(plan: Plan, graph: Graph, costs: Costs) -> Candidate:
    """Validates, compiles, checks and simulates one plan."""
    validate(plan, graph)
    program = compile_program(plan, graph)
    check_program(program)
    memory = predict_memory(program, plan, graph, costs)
    check_memory(memory, plan)
    timeline = simulate(program, plan, costs)
    return Candidate(replace(plan, predicted_seconds=timeline.step_seconds), timeline, memory)


def work_bound(costs: Costs, cluster: Cluster, batch_size: int) -> float:
    """Total work over total speed: no plan on these devices is faster."""
    rate = 0.0
    for host in cluster.hosts:
        speeds = sorted(
            (
                d.speed
                / max(
                    sum((a.forward_per_row + a.backward_per_row) * batch_size for a in costs.atoms[d.kind.name]),
                    1e-30,
                )
                for d in cluster.devices
                if d.host == host.name
            ),
            reverse=True,
        )
        rate += sum(speeds[: host.compute_slots])
    return 1.0 / rate


def _candidates(graph: Graph, costs: Costs, cluster: Cluster, batch_size: int, wishes: Wishes) -> Iterator[Plan]:
    limits = limits_of(wishes.pins, graph)
    layouts = list(_layouts(len(cluster.devices), len(graph.atoms), wishes))
    if wishes.pins:
        check_stage_counts(wishes.pins, graph, {len(replicas) for replicas in layouts})
        layouts = [replicas for replicas in layouts if len(replicas) in limits.stage_counts]
    for replicas in layouts:
        devices = _assign(replicas)
        for micro_batches in _micro_batch_counts(batch_size, max(replicas), len(replicas), wishes):
            rows = max(1, batch_size // micro_batches)
            boundaries = balanced_boundaries(graph, costs, cluster, devices, rows, limits)
            for schedule in [wishes.schedule] if wishes.schedule else SCHEDULES:
                if len(replicas) == 1 and schedule != wishes.schedule and schedule != "1f1b":
                    continue  # with one stage every schedule is gradient accumulation
                yield Plan(
                    model=graph.name,
                    fingerprint=graph.fingerprint,
                    cluster=cluster,
                    batch_size=batch_size,
                    micro_batches=micro_batches,
                    schedule=schedule,
                    stages=even_stages(boundaries, len(graph.atoms), devices),
                )


def _layouts(num_devices: int, num_atoms: int, wishes: Wishes) -> Iterator[tuple[int, ...]]:
    """Replicas per stage."""
    if wishes.replicas is not None:
        if wishes.stages is not None and wishes.stages != len(wishes.replicas):
            raise PlaitError(
                f"{wishes.stages} stages were asked for, but replicas are given for {len(wishes.replicas)}. "
                "Give one number of replicas per stage."
            )
        if sum(wishes.replicas) > num_devices:
            raise PlaitError(
                f"the stages need {sum(wishes.replicas)} devices ({'+'.join(map(str, wishes.replicas))}), but the "
                f"cluster has {num_devices}. Use fewer replicas or a larger cluster."
            )
        yield wishes.replicas
        return
    if wishes.stages is not None:
        if wishes.stages > num_devices:
            raise PlaitError(
                f"{wishes.stages} stages were asked for, but the cluster has {num_devices} devices, and a stage "
                "needs at least one. Use fewer stages or a larger cluster."
            )
        yield (num_devices // wishes.stages,) * wishes.stages
        return
    for stages in range(1, min(num_devices, num_atoms) + 1):
        for replicas in range(1, num_devices // stages + 1):
            if stages * replicas > num_devices // 2 or num_devices == 1:
                yield (replicas,) * stages


def _assign(replicas: Sequence[int]) -> list[list[int]]:
    devices, first = [], 0
    for count in replicas:
        devices.append(list(range(first, first + count)))
        first += count
    return devices


def _micro_batch_counts(batch_size: int, replicas: int, stages: int, wishes: Wishes) -> list[int]:
    if wishes.micro_batches is not None:
        return [wishes.micro_batches]
    counts = [2**k for k in range(11) if 2**k * replicas <= batch_size]
    return [m for m in counts if m <= 8 * stages] or counts[:1] or [1]


def _name(plan: Plan) -> str:
    return f"{plan.layout()} m{plan.micro_batches} {plan.schedule}"


def _nothing_fits(cluster: Cluster, batch_size: int, wishes: Wishes) -> str:
    return f"no plan for batch size {batch_size} on {len(cluster.devices)} devices with {wishes} exists; loosen a wish."
