"""The planner's plan against those of classical planners, played on the test bed.

Emulated compute, real communication: real processes and packets, computations that take the time of the cost model
(presets; nothing is measured on this machine). GPipe and 1F1B split evenly; PipeDream, DAPPLE and HetPipe plan by their
own rules. Claim: on every case Plait's plan is the fastest, as emulated. Baselines that do not fit in memory are left
out; where one is Plait's own plan, it is played once and counts as first too. Needs root and iproute2.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean

from rich.console import Console
from rich.table import Table

import _clusters
from _cases import captured
from _harness import arguments, finish
from plait.cluster import Cluster
from plait.emulate.commands import check_machine
from plait.emulate.testbed import NotTrusted, emulate
from plait.plan import Plan
from plait.search import Problem, find_plans
from plait.search.baselines import compare

RIVALS = ("gpipe", "1f1b", "pipedream", "dapple", "hetpipe")
BUDGET = 5.0
_TRIES = 3


@dataclass(frozen=True)
class Row:
    """Seconds on the bed in the cluster's own time, and what was simulated; of Plait first."""

    case: str
    plan: str
    emulated: float
    simulated: float
    rivals: dict[str, float | None]
    simulated_rivals: dict[str, float | None]
    trusted: bool

    @property
    def best_rival(self) -> float:
        return min(seconds for seconds in self.rivals.values() if seconds is not None)

    @property
    def is_first(self) -> bool:
        return self.emulated <= self.best_rival


def cases() -> Iterator[tuple[str, Cluster, int]]:
    four = _clusters.hosts("2x2-25g", 2, 2, "v100-32gb", rate=25)
    eight = _clusters.hosts("2x4-10g", 2, 4, "v100-32gb", rate=10)
    slow = _clusters.hosts("4x1-10g", 4, 1, "v100-32gb", rate=10)
    graph = _clusters.connectivity(6, seed=3)
    yield "gpt2-medium", four, 32
    yield "gpt2-medium", eight, 64
    yield "bert-large", eight, 64
    yield "bert-large", graph, 48
    yield "vgg19", slow, 128
    yield "vgg19", eight, 256
    yield "resnet152", graph, 192
    yield "resnet152", slow, 128
    yield "inception-v3", four, 128
    yield "inception-v3", graph, 192


class Bench:
    """Plays plans of one case; one that two planners agree on, once."""

    def __init__(self, model: str, cluster: Cluster, batch_size: int, steps: int) -> None:
        self.graph, self.costs = captured(model)
        self.name = f"{model} on {cluster.name}"
        self.cluster, self.batch_size, self.steps = cluster, batch_size, steps
        self.trusted = True
        self.played: list[tuple[Plan, float]] = []

    def row(self) -> Row:
        problem = Problem(self.graph, self.costs, self.cluster, self.batch_size)
        best = find_plans(self.graph, self.costs, self.cluster, batch_size=self.batch_size, budget_seconds=BUDGET).best
        judged = {name: found for name, found in compare(problem).items() if name in RIVALS}
        rivals = {name: self.seconds(found.plan) if found.plan else None for name, found in judged.items()}
        plan = best.plan
        return Row(
            self.name,
            f"{plan.layout()} m{plan.micro_batches} {plan.schedule} {plan.sync}",
            self.seconds(plan),
            best.step_seconds,
            rivals,
            {name: found.step_seconds for name, found in judged.items()},
            self.trusted,
        )

    def seconds(self, plan: Plan) -> float:
        plan = replace(plan, predicted_seconds=None)
        found = next((seconds for other, seconds in self.played if other == plan), None)
        if found is None:
            found = self._play(plan)
            self.played.append((plan, found))
        return found

    def _play(self, plan: Plan) -> float:
        for attempt in range(_TRIES):
            force = attempt == _TRIES - 1
            try:
                with tempfile.TemporaryDirectory() as folder:
                    found = emulate(plan, self.graph, self.costs, Path(folder), num_steps=self.steps, force=force)
                break
            except NotTrusted:
                continue
        self.trusted = self.trusted and not found.findings.why_not_trusted()
        return found.step_seconds


def show(rows: list[Row]) -> None:
    table = Table(title="Emulated step (emulated compute, real communication), ms of the cluster's time; x Plait's")
    for heading in ("case", "plan", "Plait", *RIVALS):
        table.add_column(heading, justify="left" if heading in ("case", "plan") else "right")
    for row in rows:
        ratios = [row.rivals.get(name) for name in RIVALS]
        table.add_row(
            row.case,
            row.plan,
            f"{row.emulated * 1e3:.1f}{'' if row.trusted else ' ?'}",
            *(f"{seconds / row.emulated:.2f}" if seconds is not None else "-" for seconds in ratios),
        )
    Console(width=130).print(table)


def main() -> None:
    options = arguments(__doc__)
    check_machine()
    chosen = list(cases())[:2] if options.quick else list(cases())
    rows = []
    for case in chosen:
        rows.append(Bench(*case, steps=3).row())
        print(f"{rows[-1].case}: {rows[-1].best_rival / rows[-1].emulated:.2f} x the best rival", flush=True)
    show(rows)
    figures: dict[str, object] = {
        "cases": len(rows),
        "first": sum(row.is_first for row in rows),
        "not_trusted": sum(not row.trusted for row in rows),
    }
    for name in (*RIVALS, "best"):
        found = [row.best_rival if name == "best" else row.rivals.get(name) for row in rows]
        ups = [seconds / row.emulated for seconds, row in zip(found, rows, strict=True) if seconds is not None]
        figures[f"{name}_mean"] = round(geometric_mean(ups), 3) if ups else None
        figures[f"{name}_most"] = round(max(ups), 2) if ups else None
    listed = [vars(row) for row in rows]
    finish("planning_emulated", figures, rows=listed, holds=all(row.is_first for row in rows), check=options.check)


if __name__ == "__main__":
    main()
