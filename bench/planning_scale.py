"""Plans for many devices: GPT-2 XL, captured whole, on hosts of eight A100s; and whether a time budget is kept.

Claim: from nothing to a plan, capture and costs included, takes at most 30 s and 3 GB on 512 devices and at most 90 s
on 1,024; and whatever the budget, planning ends no more than one second after it. Every size has a fresh process that
captures the model once and then plans with each budget in turn. Steps are simulated; nothing is run.
"""

import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from _cases import BATCH_SIZES, captured
from _clusters import NVSWITCH, hosts
from _harness import arguments, finish
from plait.search import find_plans

MODEL = "gpt2-xl"
MOST_SECONDS = {512: 30.0, 1024: 90.0}
MOST_BYTES = 3e9
LATE = 1.0  # seconds after the budget
HOST = 8
SIZES, QUICK_SIZES = (8, 64, 256, 512, 1024), (64, 512)
BUDGETS, QUICK_BUDGETS = (3.0, 5.0, 10.0, 20.0), (5.0, 20.0)


@dataclass(frozen=True)
class Row:
    devices: int
    budget: float
    ready: float  # seconds of capture and costs
    planning: float
    peak_bytes: int  # of the process until then
    plan: str
    step_seconds: float
    any_gap: float

    @property
    def late(self) -> float:
        return self.planning - self.budget

    @property
    def whole(self) -> float:
        return self.ready + self.planning


def measure(devices: int, budgets: tuple[float, ...]) -> list[Row]:
    start = time.perf_counter()
    graph, costs = captured(MODEL)
    ready = time.perf_counter() - start
    cluster = hosts(f"{devices // HOST}x{HOST}", devices // HOST, HOST, "a100", in_host=NVSWITCH, rate=100)
    rows = []
    for budget in budgets:
        start = time.perf_counter()
        answer = find_plans(graph, costs, cluster, batch_size=BATCH_SIZES[MODEL], budget_seconds=budget)
        seconds = time.perf_counter() - start
        plan, step = answer.best.plan, answer.best.step_seconds
        rows.append(
            Row(
                devices=devices,
                budget=budget,
                ready=ready,
                planning=seconds,
                peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                plan=f"{plan.layout()} m{plan.micro_batches} {plan.schedule}",
                step_seconds=step,
                any_gap=step / answer.bound_seconds - 1,
            )
        )
    return rows


def in_fresh_process(devices: int, budgets: tuple[float, ...]) -> list[Row]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, devices, budgets).result()


def show(rows: list[Row]) -> None:
    table = Table(title=f"{MODEL}, {BATCH_SIZES[MODEL]} rows a step; seconds")
    for heading in ("devices", "budget", "planning", "late", "with capture", "peak", "plan", "step", "any gap"):
        table.add_column(heading, justify="left" if heading == "plan" else "right")
    for row in rows:
        table.add_row(
            str(row.devices),
            f"{row.budget:g}",
            f"{row.planning:.2f}",
            f"{row.late:+.2f}",
            f"{row.whole:.1f}",
            f"{row.peak_bytes / 1e9:.2f} GB",
            row.plan,
            f"{row.step_seconds:.4g}",
            f"{row.any_gap:.1%}",
        )
    Console(width=140).print(table)


def main() -> None:
    options = arguments(__doc__ or "")
    sizes, budgets = (QUICK_SIZES, QUICK_BUDGETS) if options.quick else (SIZES, BUDGETS)
    rows = [row for devices in sizes for row in in_fresh_process(devices, budgets)]
    show(rows)
    longest = {devices: max(row.whole for row in rows if row.devices == devices) for devices in sizes}
    peak = max(row.peak_bytes for row in rows)
    latest = max(row.late for row in rows)
    finish(
        "planning_scale",
        {
            **{f"seconds_{devices}": round(seconds, 1) for devices, seconds in longest.items()},
            "gigabytes": round(peak / 1e9, 2),
            "latest_seconds": round(latest, 2),
        },
        rows=[asdict(row) | {"late": row.late, "whole": row.whole} for row in rows],
        holds=peak <= MOST_BYTES
        and latest <= LATE
        and all(longest[devices] <= most for devices, most in MOST_SECONDS.items() if devices in longest),
        check=options.check,
    )


if __name__ == "__main__":
    main()
