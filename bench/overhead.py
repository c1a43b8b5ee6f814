"""What the executor costs: steps of one rank with one stage against a plain PyTorch loop over the model as it was.

Claim: a step through Plait is at most 3 % slower than the loop. Both train the same model from the same weights, on the
same batches in the same micro-batches (gradient accumulation) with the same optimiser, and come to the same losses.
They take turns in one process, who goes first changing from step to step. The figure is the median over steps of
Plait's time by the loop's beside it; the spread is half the distance between the quartiles.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import median, quantiles
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from _harness import arguments, finish
from plait.cluster import local_cluster
from plait.graph import build_graph
from plait.jobs import Job, load_job
from plait.plan import Plan, StagePlan
from plait.plan.batches import describe
from plait.run import Trainer, parallelize

LIMIT = 1.03
SAME = 1e-4  # relative, between losses: gradients are summed up in single precision
WARM_UP = 3
CASES = (
    ("gpt2-tiny?dropout=0", 32, 4),
    ("gpt2-tiny?dropout=0", 8, 1),
    ("resnet50?image=64&classes=10", 8, 2),
    ("resnet50?image=64&classes=10", 8, 1),
)


@dataclass(frozen=True)
class Row:
    """Seconds are medians over the steps."""

    job: str
    rows: int
    micro_batches: int
    steps: int
    plain: float
    plait: float
    ratio: float
    spread: float
    losses_apart: float


class PlainLoop:
    """What its user would write."""

    def __init__(self, job: Job, model: nn.Module, micro_batches: int) -> None:
        self.job = job
        self.model = model
        self.micro_batches = micro_batches
        self.optimizer = job.optimizer(model.parameters())

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for parts in zip(*(tensor.chunk(self.micro_batches) for tensor in batch.values()), strict=True):
            part = dict(zip(batch, parts, strict=True))
            outputs = self.model(**part)
            loss = (outputs if self.job.loss is None else self.job.loss(outputs, part)) / self.micro_batches
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        return total


def one_rank(job: Job, model: nn.Module, batch: Any, rows: int, micro_batches: int) -> Trainer:
    graph = build_graph(copy.deepcopy(model), batch, loss=job.loss, name=job.name).graph
    whole = StagePlan(0, len(graph.atoms), (0,), (1.0,))
    plan = Plan(
        job.name, graph.fingerprint, local_cluster(1), rows, micro_batches, "1f1b", (whole,), batch=describe(batch)
    )
    return parallelize(model, plan, optimizer=job.optimizer, loss=job.loss)


def compare(name: str, rows: int, micro_batches: int, seconds: float) -> Row:
    job = load_job(name)
    torch.manual_seed(0)
    model = job.model()
    batches = list(islice(job.batches(rows, 0), 8))
    plain = PlainLoop(job, copy.deepcopy(model), micro_batches)
    trainer = one_rank(job, model, batches[0], rows, micro_batches)
    steps: dict[str, Callable[[Any], float]] = {"plain": plain.step, "plait": trainer.step}
    times: dict[str, list[float]] = {side: [] for side in steps}
    losses: dict[str, list[float]] = {side: [] for side in steps}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times["plain"]) < WARM_UP + 4:
        turn = len(times["plain"])
        for side in sorted(steps, reverse=turn % 2 == 0):
            start = time.perf_counter()
            losses[side].append(steps[side](batches[turn % len(batches)]))
            times[side].append(time.perf_counter() - start)
    trainer.close()
    timed = {side: found[WARM_UP:] for side, found in times.items()}
    ratios = [b / a for a, b in zip(timed["plain"], timed["plait"], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return Row(
        job=name,
        rows=rows,
        micro_batches=micro_batches,
        steps=len(ratios),
        plain=median(timed["plain"]),
        plait=median(timed["plait"]),
        ratio=median(ratios),
        spread=(high - low) / 2,
        losses_apart=max(abs(b / a - 1) for a, b in zip(losses["plain"], losses["plait"], strict=True)),
    )


def show(rows: list[Row]) -> None:
    table = Table("job", "rows", "micro-batches", "steps", "plain loop", "Plait", "ratio", "spread", "losses apart")
    for row in rows:
        times = [f"{seconds * 1e3:.1f} ms" for seconds in (row.plain, row.plait)]
        ratios = [f"{row.ratio:.3f}", f"{row.spread:.3f}", f"{row.losses_apart:.1e}"]
        table.add_row(row.job, str(row.rows), str(row.micro_batches), str(row.steps), *times, *ratios)
    Console(width=130).print(table)


def main() -> None:
    options = arguments(__doc__)
    torch.set_num_threads(1)
    rows = [compare(*case, seconds=12.0 if options.quick else 60.0) for case in CASES]
    show(rows)
    worst = max(rows, key=lambda row: row.ratio)
    finish(
        "overhead",
        {
            "worst": worst.job,
            "ratio": round(worst.ratio, 3),
            "losses_apart": f"{max(row.losses_apart for row in rows):.0e}",
        },
        rows=[asdict(row) for row in rows],
        holds=all(row.ratio <= LIMIT and row.losses_apart <= SAME for row in rows),
        check=options.check,
    )


if __name__ == "__main__":
    main()
