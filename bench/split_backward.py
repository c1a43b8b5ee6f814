"""A backward in two halves against one in one piece: whole models as one stage, gradients adding up as in training.

Claim: the input half and the weight half together take at most 5 % more than the fused backward, and so do forward and
backward together. Both run in turns on the same micro-batch; the figures are medians over the repeats, the spread is
half the distance between the quartiles.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median, quantiles

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from _harness import arguments, finish
from plait.cost.walk import batch_inputs
from plait.graph import Model, build_graph
from plait.graph.cut import cut
from plait.graph.deferred import run_deferred
from plait.graph.stage import StageCode, build_stage
from plait.heap import keep_freed_memory
from plait.jobs import load_job

LIMIT = 1.05
CASES = (
    ("gpt2-tiny", 8),
    ("gpt2-tiny?width=256&heads=4&sequence=128", 4),
    ("resnet50?image=64&classes=10", 4),
    ("vgg16?image=32&classes=10", 8),
)


@dataclass(frozen=True)
class Times:
    """Seconds of one run; without halves `weight` is zero."""

    forward: float
    backward: float
    weight: float

    @property
    def both(self) -> float:
        return self.backward + self.weight


@dataclass(frozen=True)
class Row:
    """Medians in seconds, and how far they spread."""

    job: str
    rows: int
    forward: float
    fused: float
    input: float
    weight: float
    spread: float
    ratio: float  # of the halves to the fused backward
    ratio_with_forward: float


def stage_of(model: Model, *, split: bool) -> StageCode:
    (whole,) = cut(model.graph, [])
    stage = build_stage(copy.copy(model), whole, split_backward=split)
    for parameter in stage.named_parameters().values():
        parameter.grad = torch.zeros_like(parameter)
    return stage


def run_once(stage: StageCode, inputs: list[Tensor], rows: int) -> Times:
    start = time.perf_counter()
    (loss,) = stage.module(rows, *inputs)
    forward = time.perf_counter()
    torch.autograd.backward(loss)
    backward = time.perf_counter()
    run_deferred(stage.weight_gradients.take())
    return Times(forward - start, backward - forward, time.perf_counter() - backward)


def compare(name: str, rows: int, repeats: int) -> Row:
    job = load_job(name)
    torch.manual_seed(0)
    batch = next(job.batches(rows, 0))
    model = build_graph(job.model(), batch, loss=job.loss, name=name)
    inputs = batch_inputs(model, batch, rows, "cpu")
    stages = {split: stage_of(model, split=split) for split in (False, True)}
    times: dict[bool, list[Times]] = {split: [] for split in stages}
    for _ in range(repeats + 2):
        for split, stage in stages.items():
            times[split].append(run_once(stage, [inputs[n] for n in stage.inputs], rows))
    fused, halves = times[False][2:], times[True][2:]

    def of(runs: list[Times], what: Callable[[Times], float]) -> float:
        return median(map(what, runs))

    low, _, high = quantiles([b.both / a.backward for a, b in zip(fused, halves, strict=True)], n=4)
    return Row(
        job=name,
        rows=rows,
        forward=of(fused, lambda t: t.forward),
        fused=of(fused, lambda t: t.backward),
        input=of(halves, lambda t: t.backward),
        weight=of(halves, lambda t: t.weight),
        spread=(high - low) / 2,
        ratio=of(halves, lambda t: t.both) / of(fused, lambda t: t.backward),
        ratio_with_forward=of(halves, lambda t: t.forward + t.both) / of(fused, lambda t: t.forward + t.backward),
    )


def show(rows: list[Row]) -> None:
    table = Table("stage", "rows", "forward", "fused B", "I", "W", "I+W / B", "spread", "F+I+W / F+B")
    for row in rows:
        times = [f"{seconds * 1e3:.1f} ms" for seconds in (row.forward, row.fused, row.input, row.weight)]
        ratios = [f"{row.ratio:.3f}", f"{row.spread:.3f}", f"{row.ratio_with_forward:.3f}"]
        table.add_row(row.job, str(row.rows), *times, *ratios)
    Console(width=130).print(table)


def main() -> None:
    options = arguments(__doc__)
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = [compare(name, size, 10 if options.quick else 40) for name, size in CASES]
    show(rows)
    worst = max(rows, key=lambda row: max(row.ratio, row.ratio_with_forward))
    finish(
        "split_backward",
        {
            "worst": worst.job,
            "ratio": round(max(row.ratio for row in rows), 3),
            "ratio_with_forward": round(max(row.ratio_with_forward for row in rows), 3),
        },
        rows=[asdict(row) for row in rows],
        holds=all(max(row.ratio, row.ratio_with_forward) <= LIMIT for row in rows),
        check=options.check,
    )


if __name__ == "__main__":
    main()
