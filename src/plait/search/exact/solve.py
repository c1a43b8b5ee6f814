"""The best of all plans of a small case, with a proof: branch on the plan, bound it, solve its order.

Plans are taken in the order of `plan_bound`. First the usual schedules are simulated, while a plan's bound is below
the best step found; then a constraint programme looks for an order below the best (`order`), for every plan whose
bound still is. What is left cannot be better by more than `TOLERANCE` of the step.
"""

import time
from dataclasses import dataclass, replace

from plait.cluster import Cluster
from plait.cost import Costs
from plait.errors import PlaitError
from plait.graph import Graph
from plait.plan import Plan
from plait.program import compile_program
from plait.search.bounds import plan_bound
from plait.search.bounds.sums import slowest_step
from plait.search.exact.order import best_order, load_solver
from plait.search.exact.plans import all_plans
from plait.search.exact.tasks import tasks_of
from plait.simulate import simulate
from plait.simulate.times import Times

MOST_ATOMS, MOST_DEVICES, MOST_MICRO_BATCHES = 8, 4, 8
TOLERANCE = 5e-5
_SCHEDULES = ("1f1b", "gpipe")


@dataclass(frozen=True)
class ExactAnswer:
    """The best plan, and the seconds of its step in its best order.

    No plan takes less than `proved_seconds`. `plan.lanes` is the order of computations where a programme found it,
    as the first replica of each stage has it, and `ordered_seconds` what the simulator says of that plan: more where
    its messages go another way round than in the optimum, or wait for buffers. `simulated_seconds` is the best of the
    usual schedules, of any plan.
    """

    plan: Plan
    seconds: float
    proved_seconds: float
    simulated_seconds: float
    ordered_seconds: float
    num_plans: int
    num_solved: int

    @property
    def complete(self) -> bool:
        """Is it the optimum, within a ten-thousandth?"""
        return self.proved_seconds >= self.seconds * (1 - 2 * TOLERANCE)


def solve_exactly(
    graph: Graph,
    costs: Costs,
    cluster: Cluster,
    batch_size: int,
    micro_batches: int,
    *,
    time_limit: float = 60.0,
) -> ExactAnswer:
    """Over plans with whole backwards, one stage on a device, even shares of the rows and rings for the sums.

    With `time_limit` seconds over, what was found and proved so far. Raises PlaitError where the case is too large,
    where devices share cores (work that shares has no order), or where OR-tools is missing.
    """
    load_solver()
    _check(graph, cluster, micro_batches)
    until = time.perf_counter() + time_limit
    bounded = [
        (plan_bound(plan, graph, costs).seconds, plan) for plan in all_plans(graph, cluster, batch_size, micro_batches)
    ]
    if not bounded:
        raise PlaitError(
            f"no plan has a row for every replica: batch size {batch_size} is smaller than {micro_batches} "
            "micro-batches. Use a larger batch or fewer micro-batches."
        )
    bounded.sort(key=lambda pair: pair[0])
    best, seconds = _simulated(bounded, graph, costs, until)
    simulated = seconds
    proved, solved = float("inf"), 0
    for bound, plan in bounded:
        if bound >= seconds * (1 - TOLERANCE):
            proved = min(proved, bound)
            break
        left = until - time.perf_counter()
        if left <= 0:
            proved = min(proved, bound)
            break
        found, reached, at_least = _solved(plan, graph, costs, seconds * (1 - TOLERANCE), left)
        proved, solved = min(proved, max(at_least, bound)), solved + 1
        if reached < seconds:
            best, seconds = found, reached
    ordered = _ordered(best, graph, costs)
    return ExactAnswer(best, seconds, min(proved, seconds), simulated, ordered, len(bounded), solved)


def _ordered(plan: Plan, graph: Graph, costs: Costs) -> float:
    """Infinite where the first replicas' orders, which others must then follow, wait for one another."""
    try:
        return simulate(compile_program(plan, graph), plan, costs).step_seconds
    except PlaitError:
        return float("inf")


def _check(graph: Graph, cluster: Cluster, micro_batches: int) -> None:
    for count, most, what in (
        (len(graph.atoms), MOST_ATOMS, "atoms"),
        (len(cluster.devices), MOST_DEVICES, "devices"),
        (micro_batches, MOST_MICRO_BATCHES, "micro-batches"),
    ):
        if count > most:
            raise PlaitError(
                f"the exact solver was given {count} {what}, but takes at most {most}: it goes through every plan. "
                "Use a smaller case, or `find_plans` and its bounds."
            )
    for host in cluster.hosts:
        if host.compute_slots is not None and host.compute_slots < len(cluster.devices_of(host.name)):
            raise PlaitError(
                f"the devices of host {host.name} share {host.compute_slots} compute slots, and work that runs side by "
                "side on them has no order to solve for. Give the host as many slots as devices."
            )


def _simulated(bounded: list[tuple[float, Plan]], graph: Graph, costs: Costs, until: float) -> tuple[Plan, float]:
    """The best of the usual schedules, over all plans that may have it."""
    best, seconds = bounded[0][1], float("inf")
    for bound, plan in bounded:
        if bound >= seconds or (seconds < float("inf") and time.perf_counter() > until):
            break
        for schedule in _SCHEDULES:
            ordered = replace(plan, schedule=schedule)
            taken = simulate(compile_program(ordered, graph), ordered, costs).step_seconds
            if taken < seconds:
                best, seconds = ordered, taken
    return best, seconds


def _solved(plan: Plan, graph: Graph, costs: Costs, below: float, time_limit: float) -> tuple[Plan, float, float]:
    """The plan in its best order, that order's seconds (infinite if not below), and what no order of it beats."""
    program = compile_program(plan, graph)
    times = Times(program, plan, costs)
    rest = times.meeting + slowest_step(times)
    if below <= rest:
        return plan, float("inf"), below
    order = best_order(tasks_of(program, times), times, graph, below=below - rest, time_limit=time_limit)
    if not order.ranks:
        return plan, float("inf"), order.proved + rest
    lanes = tuple(",".join(order.ranks[plan.stage_ranks(stage)[0]]) for (stage,) in plan.positions)
    return replace(plan, schedule="exact", lanes=lanes), order.seconds + rest, order.proved + rest
