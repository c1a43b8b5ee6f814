"""How far the planner's plans are from the optimum, and the bounds below it, on small random cases.

Claims: at least 95 % of the plans are within 2 % of the best of all plans in its best order, as the exact solver
proves it; no bound is above that optimum, nor the bound over all plans above the planner's. Cases are chains of 4 to 6
atoms with a skip now and then, on 2 to 4 devices joined anyhow, with 2 to 4 micro-batches, which the planner is told.
The optimum is over plans with whole backwards, one stage on a device and even shares: a planner that may do more can
be below it. A case that is not proved within a minute counts as missed. Beside it, without a claim: the best of GPipe
and 1F1B over every plan there is, which is what ordering micro-batches by these two rules leaves on the table; and the
optimum's order of computations as the simulator runs it.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from _harness import arguments, finish
from _small_cases import small_case
from plait.search import Wishes, find_plans
from plait.search.bounds import cluster_bound, plan_bound
from plait.search.exact import solve_exactly

CASES, QUICK_CASES = 200, 30
NEAR, MOST = 0.02, 0.95
TIME_LIMIT = 60.0  # seconds a case
ROUNDING = 1e-9


@dataclass(frozen=True)
class Row:
    """One case; everything but `optimum` and the seconds of the search is a ratio to the optimum."""

    seed: int
    layout: str
    optimum: float
    proved: bool
    planned: float
    usual_orders: float
    order_simulated: float | None  # none where replicas of a stage have orders that no one order can follow
    plan_bound: float
    cluster_bound: float
    exact_seconds: float
    planner_seconds: float


def compare(seed: int) -> Row:
    case = small_case(seed)
    start = time.perf_counter()
    exact = solve_exactly(
        case.graph, case.costs, case.cluster, case.batch_size, case.micro_batches, time_limit=TIME_LIMIT
    )
    middle = time.perf_counter()
    wishes = Wishes(micro_batches=case.micro_batches, overlap="off")
    answer = find_plans(case.graph, case.costs, case.cluster, batch_size=case.batch_size, wishes=wishes)
    end = time.perf_counter()
    anyhow = cluster_bound(case.graph, case.costs, case.cluster, case.batch_size, overlap="off")
    return Row(
        seed=seed,
        layout=exact.plan.layout(),
        optimum=exact.seconds,
        proved=exact.complete,
        planned=answer.best.timeline.step_seconds / exact.seconds,
        usual_orders=exact.simulated_seconds / exact.seconds,
        order_simulated=exact.ordered_seconds / exact.seconds if math.isfinite(exact.ordered_seconds) else None,
        plan_bound=plan_bound(exact.plan, case.graph, case.costs).seconds / exact.seconds,
        cluster_bound=anyhow.seconds / exact.seconds,
        exact_seconds=middle - start,
        planner_seconds=end - middle,
    )


def near(rows: Sequence[Row], name: str) -> float:
    """Part of the rows within 2 %; one whose optimum is not proved is not counted as such."""
    return sum(row.proved and getattr(row, name) <= 1 + NEAR for row in rows) / len(rows)


def show(rows: Sequence[Row]) -> None:
    table = Table("of the optimum", "least", "median", "mean", "most", "within 2 %", title=f"{len(rows)} random cases")
    for name in ("planned", "usual_orders", "order_simulated", "plan_bound", "cluster_bound"):
        ratios = [ratio for row in rows if (ratio := getattr(row, name)) is not None]
        figures = (min(ratios), statistics.median(ratios), statistics.mean(ratios), max(ratios))
        within = sum(abs(ratio - 1) <= NEAR for ratio in ratios)
        table.add_row(name.replace("_", " "), *(f"{figure:.3f}" for figure in figures), f"{within} of {len(ratios)}")
    Console(width=100).print(table)


def main() -> None:
    options = arguments(__doc__)
    rows = [compare(seed) for seed in range(QUICK_CASES if options.quick else CASES)]
    show(rows)
    planned = [row.planned for row in rows]
    bounds = [bound for row in rows for bound in (row.plan_bound, row.cluster_bound)]
    over = max(row.cluster_bound / row.planned for row in rows)
    figures = {
        "cases": len(rows),
        "proved": sum(row.proved for row in rows),
        "within_2_percent": f"{near(rows, 'planned'):.3f}",
        "worst": f"{max(planned):.3f}",
        "best": f"{min(planned):.3f}",
        "mean": f"{statistics.mean(planned):.3f}",
        "usual_orders_within_2_percent": f"{near(rows, 'usual_orders'):.3f}",
        "plan_bound_median": f"{statistics.median(row.plan_bound for row in rows):.4f}",
        "cluster_bound_median": f"{statistics.median(row.cluster_bound for row in rows):.4f}",
        "longest_exact_seconds": f"{max(row.exact_seconds for row in rows):.1f}",
    }
    finish(
        "optimality",
        figures,
        rows=[asdict(row) for row in rows],
        holds=near(rows, "planned") >= MOST and max(*bounds, over) <= 1 + ROUNDING,
        check=options.check,
    )


if __name__ == "__main__":
    main()
