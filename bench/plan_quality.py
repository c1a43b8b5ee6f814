"""Plait's plans against those of classical planners, on models and clusters of many kinds; and against their bounds.

Claim: on every case Plait's plan is at least as fast as every baseline's, each planned by its own rules and judged by
the same simulator and memory model; the gap of the found order to the bound of its own partition is at most 3 % in the
median and 10 % at the 95th percentile; the gap to the bound for any plan at all is at most 20 % in the median; and
planning takes at most 5 s for any case (baselines not counted).

Models: GPT-2 medium, large and XL, BERT-large, VGG19, ResNet152 and Inception-v3, computed from presets, and five
public profiles. Clusters: `_clusters.py`. `--seed N` draws random clusters instead. Nothing is run: simulated times.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean, median, quantiles

from rich.console import Console
from rich.table import Table

from _cases import Case, cases, models
from _clusters import clusters, random_cluster
from _harness import arguments, finish
from plait.errors import PlaitError
from plait.search import Problem, find_plans
from plait.search.baselines import BASELINES, compare

BUDGET = 4.0  # of the 5 s that a case may take
OWN_MEDIAN, OWN_WORST, ANY_MEDIAN, SECONDS = 0.03, 0.10, 0.20, 5.0
QUICK_MODELS = ("gpt2-medium", "vgg19", "resnet50.txt")
RANDOM_CLUSTERS = 6


@dataclass(frozen=True)
class Row:
    case: str
    plan: str
    step_seconds: float
    own_bound: float
    any_bound: float
    own_argument: str
    argument: str
    planning_seconds: float
    baselines: dict[str, float | None]

    @property
    def own_gap(self) -> float:
        return self.step_seconds / self.own_bound - 1

    @property
    def any_gap(self) -> float:
        return self.step_seconds / self.any_bound - 1

    @property
    def beaten_by(self) -> list[str]:
        limit = self.step_seconds * (1 - 1e-9)
        return [name for name, seconds in self.baselines.items() if seconds is not None and seconds < limit]

    def speed_up(self, name: str) -> float | None:
        seconds = self.baselines[name]
        return None if seconds is None else seconds / self.step_seconds

    @property
    def best_speed_up(self) -> float | None:
        found = [seconds for seconds in self.baselines.values() if seconds is not None]
        return min(found) / self.step_seconds if found else None


def measure(case: Case) -> Row | str:
    """A row, or why nothing can train this model on this cluster."""
    start = time.perf_counter()
    try:
        answer = find_plans(case.graph, case.costs, case.cluster, batch_size=case.batch_size, budget_seconds=BUDGET)
    except PlaitError as error:
        return str(error)
    seconds = time.perf_counter() - start
    judged = compare(Problem(case.graph, case.costs, case.cluster, case.batch_size))
    best = answer.best
    assert best.bound is not None
    return Row(
        case=case.name,
        plan=f"{best.plan.layout()} m{best.plan.micro_batches} {best.plan.schedule}",
        step_seconds=best.step_seconds,
        own_bound=best.bound.seconds,
        any_bound=answer.bound.seconds,
        own_argument=best.bound.name,
        argument=answer.bound.name,
        planning_seconds=seconds,
        baselines={name: found.step_seconds for name, found in judged.items()},
    )


def chosen(options: argparse.Namespace) -> Iterator[Case]:
    if options.seed is not None:
        return cases(models(), [random_cluster(options.seed + number) for number in range(RANDOM_CLUSTERS)])
    names = [name for name in models() if not options.quick or name in QUICK_MODELS]
    return cases(names, clusters().values())


def summary(rows: Sequence[Row]) -> dict[str, object]:
    own, anyway = [row.own_gap for row in rows], [row.any_gap for row in rows]
    figures: dict[str, object] = {
        "cases": len(rows),
        "beaten": sum(bool(row.beaten_by) for row in rows),
        "own_gap_median": round(median(own), 4),
        "own_gap_p95": round(percentile(own), 4),
        "any_gap_median": round(median(anyway), 4),
        "any_gap_p95": round(percentile(anyway), 4),
        "longest_planning_seconds": round(max(row.planning_seconds for row in rows), 2),
    }
    for name in (*BASELINES, "best"):
        ups = [up for row in rows if (up := row.best_speed_up if name == "best" else row.speed_up(name)) is not None]
        key = name.replace("-", "_")
        figures[f"{key}_mean"] = round(geometric_mean(ups), 3) if ups else None
        figures[f"{key}_most"] = round(max(ups), 2) if ups else None
        if name != "best":
            figures[f"{key}_unfit"] = sum(row.baselines[name] is None for row in rows)
    return figures


def percentile(values: Sequence[float]) -> float:
    return quantiles(values, n=20)[-1] if len(values) > 1 else values[0]


def holds(figures: dict[str, object], rows: Sequence[Row]) -> bool:
    own = [row.own_gap for row in rows]
    return (
        figures["beaten"] == 0
        and median(own) <= OWN_MEDIAN
        and percentile(own) <= OWN_WORST
        and median(row.any_gap for row in rows) <= ANY_MEDIAN
        and all(row.planning_seconds <= SECONDS for row in rows)
    )


def show(rows: Sequence[Row], unfit: dict[str, str]) -> None:
    table = Table(title="simulated step times; a baseline's column is how many times as long its plan takes")
    for heading in ("case", "plan", "step", "own gap", "any gap", "argument", "s", *BASELINES):
        table.add_column(heading, justify="left" if heading in ("case", "plan", "argument") else "right")
    for row in rows:
        ups = (f"{up:.2f}" if (up := row.speed_up(name)) is not None else "-" for name in BASELINES)
        table.add_row(
            row.case,
            row.plan,
            f"{row.step_seconds:.4g} s",
            f"{row.own_gap:.1%}",
            f"{row.any_gap:.1%}",
            row.argument,
            f"{row.planning_seconds:.1f}",
            *ups,
            style="red" if row.beaten_by else None,
        )
    console = Console(width=200)
    console.print(table)
    for name, why in unfit.items():
        console.print(f"{name}: {why}", markup=False)


def main() -> None:
    options = arguments(
        __doc__ or "", lambda parser: parser.add_argument("--seed", type=int, help="draw random clusters")
    )
    rows: list[Row] = []
    unfit: dict[str, str] = {}
    for case in chosen(options):
        found = measure(case)
        if isinstance(found, str):
            unfit[case.name] = found
            continue
        rows.append(found)
        print(f"{found.case}: {found.step_seconds:.4g} s, own {found.own_gap:.1%}, any {found.any_gap:.1%}", flush=True)
    show(rows, unfit)
    figures = summary(rows)
    finish(
        "plan_quality",
        {**figures, "unfit_cases": len(unfit)},
        rows=[asdict(row) for row in rows],
        holds=holds(figures, rows),
        check=options.check,
    )


if __name__ == "__main__":
    main()
