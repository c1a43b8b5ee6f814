"""Predicted against measured memory of every rank, with real processes on this machine.

Claim: what a plan's rank is predicted to hold at its fullest is within 10 % of what the run allocates, for text and
image models, on one device, in pipelines of two and four stages, with replicas, with AdamW and SGD.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from _harness import arguments, finish
from plait.cli.prepare import CapturedJob, capture_job, micro_rows
from plait.cluster import load_cluster
from plait.cost import Costs, estimate_costs
from plait.jobs.optimizers import momentum
from plait.plan import Plan, even_stages, save_plan
from plait.plan.batches import describe
from plait.program import compile_program, predict_memory
from plait.search.partition import balanced_boundaries

LIMIT = 0.10
RANK = Path(__file__).with_name("_memory_rank.py")


@dataclass(frozen=True)
class Layout:
    """`replicas` per position; every position holds `chunks` stages."""

    replicas: tuple[int, ...]
    micro_batches: int
    schedule: str
    recompute: bool = False
    chunks: int = 1

    @property
    def name(self) -> str:
        recompute = " recompute" if self.recompute else ""
        return f"{'+'.join(map(str, self.replicas))} m{self.micro_batches} {self.schedule}{recompute}"

    @property
    def devices(self) -> list[list[int]]:
        groups, first = [], 0
        for count in self.replicas:
            groups.append(list(range(first, first + count)))
            first += count
        return groups * self.chunks


LAYOUTS = (
    Layout((1,), 2, "1f1b"),
    Layout((1, 1), 8, "1f1b"),
    Layout((1, 1, 1, 1), 8, "1f1b"),
    Layout((1, 1), 4, "gpipe"),
    Layout((2, 2), 4, "1f1b"),
    Layout((2,), 2, "1f1b"),
    Layout((1, 1), 4, "gpipe", recompute=True),
    Layout((1, 1), 8, "zb-h1"),
    Layout((1, 1), 4, "interleaved", chunks=2),
)
JOBS = (  # name, batch size, optimiser
    ("gpt2-tiny", 32, "job"),
    ("gpt2-tiny?width=512&vocabulary=8192", 16, "sgd"),
    ("bert-tiny", 32, "job"),
    ("bert-large?layers=4&width=512&heads=8&sequence=128&vocabulary=8192", 16, "job"),
    ("vgg16?image=32", 32, "job"),
    ("resnet50?image=64", 32, "job"),
    ("unet", 32, "job"),
)
QUICK = [(JOBS[0], LAYOUTS[1]), (JOBS[3], LAYOUTS[3]), (JOBS[5], LAYOUTS[5]), (JOBS[6], LAYOUTS[1])]


@dataclass(frozen=True)
class Row:
    job: str
    plan: str
    rank: int
    predicted: int
    measured: int
    resident: int
    predicted_static: int
    static: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Subject:
    """A job captured and costed once for all its layouts."""

    captured: CapturedJob
    costs: Costs
    optimizer: str


def subject(name: str, batch_size: int, optimizer: str) -> Subject:
    cluster = load_cluster("local:4")
    captured = capture_job(name, cluster, batch_size=batch_size, dtype="float32", seed=0)
    factory = captured.job.optimizer if optimizer == "job" else partial(momentum, learning_rate=0.01)
    costs = estimate_costs(
        captured.model, captured.example, cluster, factory, largest_rows=micro_rows(batch_size, 4), use_cache=False
    )
    return Subject(captured, costs, optimizer)


def plan_of(model: Subject, layout: Layout) -> Plan:
    graph, cluster = model.captured.model.graph, load_cluster(f"local:{sum(layout.replicas)}")
    rows = model.captured.batch_size // layout.micro_batches
    boundaries = balanced_boundaries(graph, model.costs, cluster, layout.devices, rows)
    stages = even_stages(boundaries, len(graph.atoms), layout.devices)
    return Plan(
        model=graph.name,
        fingerprint=graph.fingerprint,
        cluster=cluster,
        batch_size=model.captured.batch_size,
        micro_batches=layout.micro_batches,
        schedule=layout.schedule,
        stages=tuple(replace(stage, recompute=layout.recompute) for stage in stages),
        batch=describe(model.captured.example),
    )


def run_case(model: Subject, layout: Layout) -> list[Row]:
    plan = plan_of(model, layout)
    graph = model.captured.model.graph
    predicted = predict_memory(compile_program(plan, graph), plan, graph, model.costs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        save_plan(plan, path)
        found = _measure([graph.name, str(path), f"{folder}/memory", model.optimizer], plan.num_ranks, Path(folder))
    return [
        Row(
            graph.name,
            layout.name,
            rank,
            use.peak,
            seen["profiled"],
            seen["resident"],
            use.static,
            seen["static"],
        )
        for rank, (use, seen) in enumerate(zip(predicted, found, strict=True))
    ]


def _measure(arguments: Sequence[str], num_ranks: int, folder: Path) -> list[dict[str, int]]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []
    for rank in range(num_ranks):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "MALLOC_MMAP_THRESHOLD_": "65536",  # blocks larger than that go back to the kernel when freed
        }
        with (folder / f"rank-{rank}.log").open("wb") as log:
            processes.append(
                subprocess.Popen([sys.executable, str(RANK), *arguments], env=environment, stdout=log, stderr=log)
            )
    try:
        for rank, process in enumerate(processes):
            if process.wait(timeout=300):
                raise RuntimeError((folder / f"rank-{rank}.log").read_text(errors="replace")[-2000:])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"memory.{rank}.json").read_text()) for rank in range(num_ranks)]


def main() -> None:
    options = arguments(__doc__)
    torch.set_num_threads(1)
    cases = QUICK if options.quick else [(job, layout) for job in JOBS for layout in LAYOUTS]
    rows: list[Row] = []
    subjects: dict[str, Subject] = {}
    console = Console(width=130)
    for job, layout in cases:
        if job[0] not in subjects:
            subjects[job[0]] = subject(*job)
        for row in (new := run_case(subjects[job[0]], layout)):
            console.print(_line(row), highlight=False)
        rows += new
    table = Table(title="memory of a rank at its fullest, MB")
    for name in ("job", "plan", "rank", "predicted", "measured", "error", "resident"):
        table.add_column(name, justify="left" if name in ("job", "plan") else "right")
    for row in rows:
        table.add_row(
            row.job,
            row.plan,
            str(row.rank),
            *(f"{n / 1e6:.1f}" for n in (row.predicted, row.measured)),
            f"{row.error:+.1%}",
            f"{row.resident / 1e6:.1f}",
        )
    console.print(table)
    errors = [abs(row.error) for row in rows]
    figures = {
        "ranks": len(rows),
        "worst_error": f"{max(errors):.3f}",
        "mean_error": f"{sum(errors) / len(errors):.3f}",
        "measures_apart": f"{max(abs(row.resident / row.measured - 1) for row in rows):.3f}",
    }
    finish(
        "memory_fidelity",
        figures,
        rows=[vars(row) | {"error": row.error} for row in rows],
        holds=max(errors) <= LIMIT,
        check=options.check,
    )


def _line(row: Row) -> str:
    parts = f"static {row.predicted_static / 1e6:.1f} / {row.static / 1e6:.1f}"
    return f"{row.job} {row.plan} rank {row.rank}: {row.error:+.1%} ({parts})"


if __name__ == "__main__":
    main()
