"""Large models, from nothing to ready to plan: Llama of 7 billion parameters and GPT-2 XL, on `meta`, for 8 a100.

Claim: building the model, capturing it, finding its atoms and computing its costs takes at most 15 s and 3 GB each.
Every model has a fresh process. Starting Python and importing the libraries is timed beside it, and so are the
search for repeated blocks and one search for plans. The figures are those of the fastest repeat: another process
on the machine can only add to them; the processor's own seconds tell how much it did.
"""

import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torch.utils._pytree as pytree
from rich.console import Console
from rich.table import Table

from _harness import arguments, finish
from plait.cluster import Cluster, parse_cluster
from plait.cost import estimate_costs
from plait.graph import build, build_graph, repeated_blocks
from plait.jobs import load_job
from plait.search import find_plans

MOST_SECONDS = 15.0
MOST_BYTES = 3e9
REPEATS = 2
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}  # its defaults are those of the 7 B model
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One model in its own process: seconds of each step, and what came of it."""

    model: str
    imports: float
    module: float
    capture: float
    atoms: float
    costs: float
    blocks: float
    plans: float
    processor: float  # seconds the processor worked on what `ready` counts
    peak_bytes: int
    num_parameters: int
    num_atoms: int
    repeated: tuple[str, ...]

    @property
    def ready(self) -> float:
        """Everything after the imports until a plan can be asked for."""
        return self.module + self.capture + self.atoms + self.costs


def eight_a100() -> Cluster:
    text = """
        [[hosts]]
        name = "node"
        devices = [{ kind = "a100", count = 8 }]
        in_host = { bandwidth = "300 GB/s", latency = "3 us" }
    """
    return parse_cluster(text, source="capture_scale")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def measure(spec: str, asked_at: float) -> Row:
    job = load_job(spec)
    cluster = eight_a100()
    imports = time.time() - asked_at
    worked = time.process_time()
    with torch.device("meta"):
        module, building = timed(job.model)
    batch = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), next(iter(job.batches(8, 0))))
    captures: list[float] = []

    def capture(*args: Any, **options: Any) -> Any:
        captured, seconds = timed(lambda: original(*args, **options))
        captures.append(seconds)
        return captured

    original = build.capture
    with patch.object(build, "capture", capture):
        model, graph_seconds = timed(lambda: build_graph(module, batch, loss=job.loss, name=job.name))
    costs, costing = timed(lambda: estimate_costs(model, batch, cluster, job.optimizer, largest_rows=1))
    processor = time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    blocks, searching = timed(lambda: repeated_blocks(model))
    _, planning = timed(lambda: find_plans(model.graph, costs, cluster, batch_size=job.batch_size))
    return Row(
        model="llama-7b" if spec.startswith("hf:") else spec,
        imports=imports,
        module=building,
        capture=sum(captures),
        atoms=graph_seconds - sum(captures),
        costs=costing,
        blocks=searching,
        plans=planning,
        processor=processor,
        peak_bytes=peak,
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
        num_atoms=len(model.graph.atoms),
        repeated=tuple(str(block) for block in blocks),
    )


def in_fresh_process(spec: str) -> Row:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, spec, time.time()).result()


def show(rows: list[Row]) -> None:
    steps = ("imports", "module", "capture", "atoms", "costs", "blocks", "plans")
    table = Table("model", *steps, "ready to plan", "processor", "peak", title="seconds of each step; 8 x a100")
    for row in rows:
        seconds = [f"{getattr(row, step):.2f}" for step in steps]
        table.add_row(
            row.model, *seconds, f"{row.ready:.2f} s", f"{row.processor:.2f} s", f"{row.peak_bytes / 1e9:.2f} GB"
        )
    console = Console(width=120)
    console.print(table)
    for row in {row.model: row for row in rows}.values():
        console.print(f"{row.model}: {row.num_parameters / 1e9:.2f} billion parameters, {row.num_atoms} atoms")
        for block in row.repeated:
            console.print(f"  {block}")


def main() -> None:
    options = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA))
        specs = ("gpt2-xl", f"hf:{folder}?sequence=2048")
        rows = [in_fresh_process(spec) for _ in range(1 if options.quick else REPEATS) for spec in specs]
    show(rows)
    best = {row.model: min((r for r in rows if r.model == row.model), key=lambda r: r.ready) for row in rows}
    figures: dict[str, object] = {}
    for name, row in best.items():
        figures[f"{name}_seconds"] = round(row.ready, 1)
        figures[f"{name}_processor_seconds"] = round(row.processor, 1)
        figures[f"{name}_gigabytes"] = round(row.peak_bytes / 1e9, 2)
        figures[f"{name}_atoms"] = row.num_atoms
    finish(
        "capture_scale",
        figures,
        rows=[asdict(row) | {"ready": row.ready} for row in rows],
        holds=all(row.ready <= MOST_SECONDS and row.peak_bytes <= MOST_BYTES for row in best.values()),
        check=options.check,
    )


if __name__ == "__main__":
    main()
