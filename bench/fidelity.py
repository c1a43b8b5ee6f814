"""Simulated against emulated step time: five models on clusters of 4 to 12 devices, three or four rival plans each.

Emulated compute, real communication: every plan is played by real processes and packets between network namespaces,
with computations that take the time of the cost model (presets; nothing is measured on this machine). Claims: the
median error of the simulated step is at most 4 %, the worst at most 12 %, and rival plans of one model on one cluster
are ranked alike (Kendall's tau, all pairs of rivals together, at least 0.9). Needs root and iproute2.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

import _clusters
from _cases import captured
from _harness import arguments, finish
from plait.cluster import Cluster
from plait.emulate.commands import check_machine
from plait.emulate.testbed import NotTrusted, emulate
from plait.errors import PlaitError
from plait.search import Wishes, find_plans

MEDIAN, WORST, TAU = 0.04, 0.12, 0.9
_TRIES = 2
_BUDGET = 1.5  # seconds of search for the plan of a case


@dataclass(frozen=True)
class Setting:
    """One model on one cluster, and the plans that compete there."""

    model: str
    cluster: Cluster
    batch_size: int
    rivals: tuple[Wishes, ...]


@dataclass(frozen=True)
class Row:
    setting: str
    plan: str
    simulated: float
    emulated: float
    dilation: float
    trusted: bool

    @property
    def error(self) -> float:
        return self.simulated / self.emulated - 1


def settings() -> tuple[Setting, ...]:
    four = _clusters.hosts("2x2-25g", 2, 2, "v100-32gb", rate=25)
    eight = _clusters.hosts("2x4-25g", 2, 4, "v100-32gb", rate=25)
    slow = _clusters.hosts("4x1-10g", 4, 1, "v100-32gb", rate=10)
    twelve = _clusters.hosts("3x4-10g", 3, 4, "v100-32gb", rate=10)
    graph = _clusters.connectivity(6, seed=3)
    return (
        Setting("gpt2-medium", four, 32, (_pipe(4, 8), _pipe(4, 8, "gpipe"), _hybrid(2, 2, 8), _hybrid(1, 4, 4))),
        Setting("gpt2-medium", eight, 64, (_pipe(8, 8), _pipe(8, 16, "zb-h1"), _hybrid(4, 2, 8))),
        Setting("bert-large", graph, 48, (_pipe(6, 12), _pipe(3, 6), _hybrid(3, 2, 6))),
        Setting("bert-large", twelve, 96, (_pipe(12, 12), _pipe(6, 12, "gpipe"), _hybrid(6, 2, 12))),
        Setting("vgg19", slow, 128, (_pipe(4, 8), _pipe(2, 4, "gpipe"), _hybrid(2, 2, 4), _hybrid(1, 4, 1))),
        Setting("vgg19", eight, 256, (_pipe(4, 8), _hybrid(2, 4, 4), _hybrid(1, 8, 1))),
        Setting("resnet152", four, 128, (_pipe(4, 8), _pipe(2, 4), _hybrid(2, 2, 4), _hybrid(1, 4, 2))),
        Setting("inception-v3", graph, 192, (_pipe(3, 6), _pipe(6, 12), _hybrid(1, 6, 2))),
    )


def _pipe(stages: int, micro_batches: int, schedule: str = "1f1b") -> Wishes:
    return Wishes(stages=stages, replicas=(1,) * stages, micro_batches=micro_batches, schedule=schedule)


def _hybrid(stages: int, replicas: int, micro_batches: int) -> Wishes:
    return Wishes(stages=stages, replicas=(replicas,) * stages, micro_batches=micro_batches, schedule="1f1b")


def run_case(setting: Setting, wishes: Wishes, steps: int) -> Row | None:
    graph, costs = captured(setting.model)
    try:
        answer = find_plans(
            graph, costs, setting.cluster, batch_size=setting.batch_size, wishes=wishes, budget_seconds=_BUDGET
        )
    except PlaitError as error:
        print(f"{setting.model} on {setting.cluster.name}: a rival is left out: {error}")
        return None
    plan = answer.best.plan
    trusted = False
    for attempt in range(_TRIES):
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = emulate(plan, graph, costs, Path(folder), num_steps=steps, force=attempt == _TRIES - 1)
            trusted = not found.findings.why_not_trusted()
            break
        except NotTrusted:
            continue
    return Row(
        f"{setting.model} on {setting.cluster.name}",
        f"{plan.layout()} m{plan.micro_batches} {plan.schedule} {plan.sync}",
        found.simulated.step_seconds,
        found.step_seconds,
        found.dilation.time,
        trusted,
    )


def kendall_tau(rows: Sequence[Row]) -> float:
    """Over all pairs of rivals: those ranked alike less those ranked otherwise, of all."""
    alike = [
        1 if (a.simulated - b.simulated) * (a.emulated - b.emulated) > 0 else -1
        for a, b in combinations(rows, 2)
        if a.setting == b.setting
    ]
    return sum(alike) / len(alike)


def show(rows: Sequence[Row]) -> None:
    table = Table(title="Simulated and emulated step (emulated compute, real communication), ms of the cluster's time")
    for name in ("setting", "plan", "simulated", "emulated", "error", "time x"):
        table.add_column(name, justify="left" if name in ("setting", "plan") else "right")
    for row in rows:
        mark = "" if row.trusted else " ?"
        table.add_row(
            row.setting,
            row.plan,
            f"{row.simulated * 1e3:.1f}",
            f"{row.emulated * 1e3:.1f}",
            f"{row.error:+.1%}{mark}",
            f"{row.dilation:.3g}",
        )
    Console(width=120).print(table)


def main() -> None:
    options = arguments(__doc__)
    check_machine()
    chosen = settings()[:2] if options.quick else settings()
    rows = []
    for setting in chosen:
        for wishes in setting.rivals:
            row = run_case(setting, wishes, 3 if options.quick else 4)
            if row is not None:
                rows.append(row)
                print(f"{row.setting}: {row.plan} {row.error:+.1%}", flush=True)
    show(rows)
    errors = [abs(row.error) for row in rows]
    tau = kendall_tau(rows)
    figures = {
        "cases": len(rows),
        "median_error": f"{median(errors):.3f}",
        "worst_error": f"{max(errors):.3f}",
        "kendall_tau": f"{tau:.2f}",
        "not_trusted": sum(not row.trusted for row in rows),
    }
    holds = median(errors) <= MEDIAN and max(errors) <= WORST and tau >= TAU
    listed = [vars(row) | {"error": row.error} for row in rows]
    finish("fidelity", figures, rows=listed, holds=holds, check=options.check)


if __name__ == "__main__":
    main()
