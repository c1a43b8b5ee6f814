"""Grids of devices on the test bed: pure batch, pure model and the best P_r x P_c, predicted and measured.

Claim: of the grids of one stage that are played, the one that is predicted to be the fastest is the fastest measured,
and the order predicted is the order measured (ties within `TIE` aside). Computation is emulated (timed sleeps), every
byte of the exchanges inside tensor groups and of the gradient sums is real. Needs root.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from rich.console import Console
from rich.table import Table

from _cases import captured_model
from _clusters import hosts
from _harness import arguments, finish
from plait.cluster import Cluster
from plait.cost import Costs
from plait.emulate.testbed import emulate
from plait.graph import Model
from plait.plan import Plan
from plait.search import Problem, Wishes, evaluate, with_shared_layers, with_stages_of
from plait.search.groups import Groups, grouped
from plait.search.layout import Layout

TIE = 0.05  # of a step: grids closer than that are in no order
STEPS = 3
ETHERNET = '{ bandwidth = "1.25 GB/s", latency = "20 us" }'


@dataclass(frozen=True)
class Case:
    model: str
    cluster: Cluster
    batch_size: int
    micro_batches: int = 1


@dataclass(frozen=True)
class Row:
    case: str
    grid: str
    predicted: float
    measured: float


def cases(options: argparse.Namespace) -> Iterator[Case]:
    eight = hosts("eight V100 on 10 Gbit/s", 1, 8, "v100", in_host=ETHERNET)
    yield Case("alexnet-2012", eight, 128)
    if not options.quick:
        yield Case("vgg16", eight, 64)
        two = hosts("two hosts of four V100", 2, 4, "v100", in_host='{ bandwidth = "12 GB/s", latency = "5 us" }')
        yield Case("gpt2-medium", two, 8, 2)


def plans(case: Case, model: Model, costs: Costs) -> Iterator[Plan]:
    """One stage on all devices, with every number of them to a replica for which the way is known."""
    problem = Problem(model.graph, costs, case.cluster, case.batch_size)
    groups = Groups(case.cluster, costs, "ring")
    devices = range(len(case.cluster.devices))
    for tensor in (1, *sorted(one.degree for one in costs.shardings)):
        layout = Layout((), (grouped(devices, tensor),), (False,), case.micro_batches)
        yield layout.plan(problem, groups, "1f1b")


def measure(case: Case) -> list[Row]:
    model, costs = captured_model(case.model)
    costs = with_shared_layers(costs, model, case.cluster, case.batch_size, Wishes())
    rows = []
    for plan in plans(case, model, costs):
        exact = with_stages_of(costs, model, [plan])
        predicted = evaluate(plan, model.graph, exact).step_seconds
        with tempfile.TemporaryDirectory() as folder:
            found = emulate(plan, model.graph, exact, Path(folder), num_steps=STEPS, force=True)
        (stage,) = plan.stages
        name = f"{case.model}, batch {case.batch_size}, {case.cluster.name}"
        rows.append(Row(name, f"{stage.tensor}x{stage.replicas}", predicted, found.step_seconds))
    return rows


def in_order(rows: list[Row]) -> bool:
    """Is what is predicted to be faster measured to be, wherever the two are apart?"""
    apart = [(a, b) for a, b in combinations(rows, 2) if abs(a.predicted / b.predicted - 1) > TIE]
    return all((a.predicted < b.predicted) == (a.measured < b.measured) for a, b in apart)


def main() -> None:
    options = arguments(__doc__ or "")
    found = [measure(case) for case in cases(options)]
    table = Table(title="One stage on P_r x P_c devices; measured: emulated compute, real communication")
    for column in ("case", "P_r x P_c", "predicted", "measured", "error"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for rows in found:
        for row in rows:
            error = f"{row.measured / row.predicted - 1:+.1%}"
            table.add_row(row.case, row.grid, f"{1e3 * row.predicted:.1f} ms", f"{1e3 * row.measured:.1f} ms", error)
    Console(width=120).print(table)
    best = [min(rows, key=lambda row: row.predicted) for rows in found]
    fastest = sum(min(rows, key=lambda row: row.measured) is chosen for rows, chosen in zip(found, best, strict=True))
    ordered = sum(map(in_order, found))
    figures = {"cases": len(found), "chosen_is_fastest": fastest, "in_order": ordered}
    data = [asdict(row) for rows in found for row in rows]
    finish("grid", figures, rows=data, holds=fastest == ordered == len(found), check=options.check)


if __name__ == "__main__":
    main()
