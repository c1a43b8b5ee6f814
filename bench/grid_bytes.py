"""Bytes that tensor groups put on the wire, counted by the kernel, against the formulas of S2.

Claims: with every layer split by columns (S2's pure model parallelism) a step moves, forward and backward each, what
S2's formula says to within 1 %, for AlexNet and an MLP; and the MLP's layers in column-row pairs move at most half.

P ranks over gloo in a network namespace of their own run one forward and one backward of the rewritten model; the
bytes are those the namespace's loopback interface has sent in between. Of a layer with d_in inputs and d_out outputs
to a row, S2 has B (P-1)/P d_out words per process for the outputs and, but for the first layer, 2 B (P-1)/P d_in for
the gradients of the inputs. What is put together is what the next layer reads, so d_out counts behind the pooling; the
logits stay split, and their cross-entropy exchanges some numbers per row instead. Needs root, for the namespace.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from _harness import arguments, finish
from plait.graph import Model, build_graph
from plait.graph.cut import cut
from plait.graph.sharding.writer import TensorShare
from plait.graph.stage import build_stage, take_parts
from plait.jobs import load_job
from plait.run.batch import named_inputs
from plait.run.tensor import PURPOSE, TensorExchange
from plait.run.transport import TorchTransport

LIMIT = 0.01
HALF = 0.5
WIDTHS = (1024, 4096, 1024, 4096, 1024)
MLP_ROWS, ALEXNET_ROWS = 256, 16
SECONDS = 120
RANKS = (2, 4)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inner, outer) for inner, outer in pairwise(WIDTHS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return F.mse_loss(x, y)


def case_of(name: str) -> tuple[Model, Any, int]:
    torch.manual_seed(0)
    if name == "alexnet":
        job = load_job("alexnet")
        batch = next(job.batches(ALEXNET_ROWS, 0))
        return build_graph(job.model(), batch, loss=job.loss, name=name), batch, ALEXNET_ROWS
    batch = {"x": torch.randn(MLP_ROWS, WIDTHS[0]), "y": torch.randn(MLP_ROWS, WIDTHS[-1])}
    return build_graph(MLP(), batch, name=name), batch, MLP_ROWS


def split_of(model: Model, *, pairs: bool) -> dict[str, int]:
    """Weights and biases by columns; of a pair the second weight by rows."""
    split: dict[str, int] = {}
    weights = [p.name for p in model.graph.parameters if len(p.shape) > 1]
    for index, weight in enumerate(weights):
        by_rows = pairs and index % 2 == 1
        split[weight] = 1 if by_rows else 0
        if not by_rows:
            split[weight.replace("weight", "bias")] = 0
    return split


def s2_words(model: Model) -> dict[str, float]:
    """Per row, times P/(P-1): what layers put together, and the gradients of what they read."""
    read = [
        prod(int(size) for size in node.all_input_nodes[0].meta["val"].shape[1:])
        for node in model.captured.module.graph.nodes
        if str(node.target) in ("aten.linear.default", "aten.conv2d.default")
    ]
    last = WIDTHS[-1] if model.graph.name == "mlp" else 0  # logits stay split
    return {"forward": float(sum(read[1:]) + last), "backward": 2.0 * sum(read[1:])}


# The ranks


def measure(name: str, ranks: int, *, pairs: bool) -> dict[str, float]:
    """Bytes on the wire of a forward and a backward, in a namespace that this process ends with."""
    own = [sys.executable, __file__, "--inside", name, "--ranks", str(ranks), *(["--pairs"] if pairs else [])]
    command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *own]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        sys.exit(f"the ranks of {name} failed (a namespace needs root):\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def inside(name: str, ranks: int, *, pairs: bool) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    model, batch, rows = case_of(name)
    split = split_of(model, pairs=pairs)
    with tempfile.TemporaryDirectory(prefix="plait-") as folder:
        children = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                work(Path(folder), rank, ranks, model, batch, rows, split)
            children.append(pid)
        limit = time.monotonic() + SECONDS
        codes = [os.waitpid(pid, 0)[1] for pid in children if time.monotonic() < limit]
        if any(codes):
            sys.exit(1)
        print((Path(folder) / "bytes.json").read_text())


def work(folder: Path, rank: int, ranks: int, model: Model, batch: Any, rows: int, split: Mapping[str, int]) -> None:
    try:
        store = dist.FileStore(str(folder / "store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        group = tuple(range(ranks))
        transport = TorchTransport([(PURPOSE, group)], device=torch.device("cpu"), timeout_seconds=SECONDS)
        exchange = TensorExchange(transport, group)
        (whole,) = cut(model.graph, [])
        code = build_stage(model, whole, share=TensorShare(split, exchange))
        take_parts(code, exchange)
        inputs = named_inputs(model.captured, batch)
        given = [inputs.tensors[n] for n in code.inputs]
        (loss,) = code.module(rows, *given)  # connections are made by the first
        loss.backward()
        counts = [sent()]
        (loss,) = code.module(rows, *given)
        counts.append(sent())
        loss.backward()
        counts.append(sent())
        if rank == 0:
            forward, backward = counts[1] - counts[0], counts[2] - counts[1]
            (folder / "bytes.json").write_text(json.dumps({"forward": forward, "backward": backward}))
        dist.barrier()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - a fork must not go on into its parent's code
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def sent() -> int:
    """Bytes the loopback has sent, when all ranks have come here and before any goes on."""
    dist.barrier()
    time.sleep(0.2)
    lines = Path("/proc/net/dev").read_text().splitlines()
    count = next(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("lo:"))
    time.sleep(0.2)
    dist.barrier()
    return count


def main() -> None:
    if "--inside" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--inside")
        parser.add_argument("--ranks", type=int)
        parser.add_argument("--pairs", action="store_true")
        asked = parser.parse_args()
        inside(asked.inside, asked.ranks, pairs=asked.pairs)
        return
    options = arguments(__doc__)
    table = Table(title="MB on the wire, all processes")
    for column in ("model", "P", "split", "pass", "counted", "S2", "counted / S2"):
        table.add_column(column, justify="left" if column in ("model", "split", "pass") else "right")
    rows: list[dict[str, Any]] = []
    for name in ("mlp", "alexnet"):
        model, _, batch_rows = case_of(name)
        words = s2_words(model)
        for ranks in RANKS[:1] if options.quick else RANKS:
            for pairs in (False, True) if name == "mlp" else (False,):
                counted = measure(name, ranks, pairs=pairs)
                expected = {phase: (ranks - 1) * batch_rows * 4 * count for phase, count in words.items()}
                both = {"model": name, "ranks": ranks, "pairs": pairs}
                rows += [{**both, "phase": p, "counted": counted[p], "formula": expected[p]} for p in expected]
    for row in rows:
        split = "column-row pairs" if row["pairs"] else "columns"
        counted, formula = row["counted"], row["formula"]
        figures = (f"{counted / 1e6:.2f}", f"{formula / 1e6:.2f}", f"{counted / formula:.4f}")
        table.add_row(row["model"], str(row["ranks"]), split, row["phase"], *figures)
    Console().print(table)
    error = max(abs(r["counted"] / r["formula"] - 1) for r in rows if not r["pairs"])
    paired = [r for r in rows if r["pairs"]]
    share = sum(r["counted"] for r in paired) / sum(r["formula"] for r in paired)
    holds = error <= LIMIT and share <= HALF
    finish(
        "grid_bytes",
        {"largest_error": f"{error:.4f}", "pairs_of_s2": f"{share:.3f}"},
        rows=rows,
        holds=holds,
        check=options.check,
    )


if __name__ == "__main__":
    main()
