"""What the search gains where devices of a host may share layers, against the same search without.

Claim: with tensor parallelism in the search no case gets worse (by more than `NOISE`: both searches end by the clock),
and there are cases that gain. Models are computed from presets; batches are the published ones and small ones, where
there are fewer rows than devices could take. Each plan is judged with the exchanges of its own stages' code. Nothing is
run: simulated times.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table

from _cases import BATCH_SIZES, captured_model
from _clusters import clusters, hosts
from _harness import arguments, finish
from plait.cluster import Cluster
from plait.errors import PlaitError
from plait.search import Problem, Wishes, find_plans, judged_exactly, with_shared_layers

BUDGET = 4.0
NOISE = 0.02
MODELS = ("gpt2-medium", "gpt2-xl", "bert-large", "vgg19", "resnet152", "alexnet-2012")
QUICK_MODELS = ("gpt2-medium", "alexnet-2012")
NVLINK = '{ bandwidth = "300 GB/s", latency = "3 us" }'


@dataclass(frozen=True)
class Row:
    case: str
    without_plan: str
    without_seconds: float
    plan: str
    seconds: float

    @property
    def gain(self) -> float:
        return self.without_seconds / self.seconds


def measure(name: str, cluster: Cluster, batch_size: int) -> Row | None:
    """None where nothing fits, shared or not."""
    model, costs = captured_model(name)
    case = f"{name}, batch {batch_size}, on {cluster.name}"
    found: list[tuple[str, float]] = []
    for wishes in (Wishes(tensor=1), Wishes()):
        problem = Problem(
            model.graph, with_shared_layers(costs, model, cluster, batch_size, wishes), cluster, batch_size
        )
        try:
            answer = find_plans(
                problem.graph, problem.costs, cluster, batch_size=batch_size, wishes=wishes, budget_seconds=BUDGET
            )
            best, *_ = judged_exactly(answer.candidates, model, problem)
        except PlaitError:
            found.append(("-", float("inf")))
            continue
        plan = best.plan
        found.append((f"{plan.layout()} m{plan.micro_batches} {plan.schedule}", best.step_seconds))
    (plain, plain_seconds), (shared, seconds) = found
    return None if seconds == plain_seconds == float("inf") else Row(case, plain, plain_seconds, shared, seconds)


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Cluster, int]]:
    nvlink = [
        hosts("one NVLink host of eight A100", 1, 8, "a100", in_host=NVLINK),
        hosts("two NVLink hosts of four V100", 2, 4, "v100", in_host=NVLINK),
    ]
    others = [] if options.quick else list(clusters().values())
    for name in QUICK_MODELS if options.quick else MODELS:
        published = BATCH_SIZES.get(name, 1024)
        for cluster in nvlink:
            for batch_size in (1, 4, published):
                yield name, cluster, batch_size
        for cluster in others:
            yield name, cluster, published


def main() -> None:
    options = arguments(__doc__ or "")
    rows = [row for case in cases(options) if (row := measure(*case)) is not None]
    table = Table(title="Layers shared by devices of a host, against single devices (simulated step)")
    for column in ("case", "without", "", "with", "", "gain"):
        table.add_column(column, justify="left" if column else "right")
    for row in sorted(rows, key=lambda row: -row.gain):
        table.add_row(
            row.case,
            row.without_plan,
            f"{1e3 * row.without_seconds:.1f} ms",
            row.plan,
            f"{1e3 * row.seconds:.1f} ms",
            f"{row.gain:.3f}x",
        )
    Console(width=160).print(table)
    worse = [row.case for row in rows if row.gain < 1 - NOISE]
    gained = [row.case for row in rows if row.gain > 1 + NOISE]
    for case in worse:
        print(f"worse: {case}")
    figures = {
        "cases": len(rows),
        "gained": len(gained),
        "worse": len(worse),
        "largest_gain": round(max(row.gain for row in rows if row.gain < float("inf")), 3),
        "only_with_shared_layers": sum(row.gain == float("inf") for row in rows),
    }
    data = [asdict(replace(row, without_seconds=min(row.without_seconds, 1e300))) for row in rows]
    finish("shared_layers", figures, rows=data, holds=not worse and bool(gained), check=options.check)


if __name__ == "__main__":
    main()
