"""Simulated against measured step time with real computation: gpt2-tiny on local:2.

Claim: for every plan the median measured step is within 15 % of the simulated one. The speed of a shared machine
drifts from minute to minute, so costs are measured before and after every run, and the prediction is the mean of both.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from _harness import arguments, finish
from plait.cli.prepare import Prepared, prepare
from plait.cluster import load_cluster
from plait.cost import Costs, estimate_costs
from plait.plan import save_plan
from plait.plan.batches import describe
from plait.run.session import run_plan
from plait.run.settings import Settings
from plait.search import Wishes, evaluate, find_plans

LIMIT = 0.15
JOB = "gpt2-tiny"
CASES = (
    Wishes(stages=2, replicas=(1, 1), micro_batches=8, schedule="1f1b"),
    Wishes(stages=2, replicas=(1, 1), micro_batches=4, schedule="gpipe"),
    Wishes(stages=1, replicas=(2,), micro_batches=2),
)


@dataclass(frozen=True)
class Row:
    plan: str
    predicted_before: float
    predicted_after: float
    measured: float
    fastest: float
    slowest: float

    @property
    def error(self) -> float:
        return (self.predicted_before + self.predicted_after) / 2 / self.measured - 1


def run_case(wishes: Wishes, steps: int) -> Row:
    prepared = prepare(JOB, load_cluster("local:2"), batch_size=None, dtype="float32", seed=0)
    before = measure(prepared)
    answer = find_plans(
        prepared.model.graph,
        before,
        prepared.cluster,
        batch_size=prepared.batch_size,
        wishes=wishes,
        batch=describe(prepared.example),
    )
    plan = answer.best.plan
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        save_plan(plan, path)
        settings = Settings(job=JOB, plan=path, steps=steps, batch_size=plan.batch_size)
        record = run_plan(settings, plan, Path(folder))
    again = evaluate(plan, prepared.model.graph, measure(prepared))
    settled = record.settled_seconds
    name = f"{plan.layout()} m{plan.micro_batches} {plan.schedule}"
    predicted = (answer.best.timeline.step_seconds, again.timeline.step_seconds)
    return Row(name, *predicted, median(settled), min(settled), max(settled))


def measure(prepared: Prepared) -> Costs:
    return estimate_costs(
        prepared.model,
        prepared.example,
        prepared.cluster,
        prepared.job.optimizer,
        largest_rows=prepared.batch_size // 2,
        use_cache=False,
    )


def main() -> None:
    options = arguments(__doc__)
    repeats, steps = (1, 12) if options.quick else (3, 25)
    rows = [run_case(case, steps) for _ in range(repeats) for case in CASES]
    table = Table(title=f"{JOB} on local:2, {steps} steps each, ms")
    for name in ("plan", "sim. before", "sim. after", "measured median", "fastest", "slowest", "error"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.plan,
            *(
                f"{s * 1e3:.1f}"
                for s in (row.predicted_before, row.predicted_after, row.measured, row.fastest, row.slowest)
            ),
            f"{row.error:+.1%}",
        )
    Console(width=110).print(table)
    by_plan = {row.plan: [abs(r.error) for r in rows if r.plan == row.plan] for row in rows}
    typical = {plan: median(errors) for plan, errors in by_plan.items()}
    worst = max(typical.values())
    figures = {
        "plans": len(typical),
        "median_error": f"{median(typical.values()):.3f}",
        "worst_plan_error": f"{worst:.3f}",
    }
    finish(
        "fidelity_local",
        figures,
        rows=[vars(r) | {"error": r.error} for r in rows],
        holds=worst <= LIMIT,
        check=options.check,
    )


if __name__ == "__main__":
    main()
