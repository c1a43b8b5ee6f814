"""Peak memory of one rank of four that makes its part of a model, then of one that builds the model whole.

`python materialise_memory.py` prints both in bytes, without what the process held before.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from comparison import Case, make_plan, sgd
from in_process import ThreadTransport, World
from torch import Tensor, nn

from plait.graph import build_graph
from plait.run import Trainer
from plait.run.materialise import Construction, construct, origin_of
from plait.run.transport import Done, Pending

WIDTH, LAYERS, STAGES = 2300, 20, 4


def build(width: int = WIDTH, layers: int = LAYERS) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def mean_square(outputs: Tensor, batch: Any) -> Tensor:
    return outputs.square().mean()


class Alone(ThreadTransport):
    """A rank whose tensors no other rank holds."""

    def broadcast(self, tensor: Tensor, ranks: tuple[int, ...], root: int, purpose: str = "broadcast") -> Pending:
        assert ranks == (self.rank,)
        return Done()


def rank_one(construction: Construction, width: int = WIDTH) -> Trainer:
    batch = torch.zeros(8, width)
    model = build_graph(construction.module, batch, loss=mean_square)
    plan = make_plan(Case(construction.module, model, (batch,)), (1,) * STAGES, 4)
    transport = Alone(World(STAGES), 1)
    return Trainer(model, plan, transport, optimizer=sgd, origin=origin_of(construction, model, None))


def resident(field: str) -> int:
    """`VmRSS`, what is held now, or `VmHWM`, the most since the last `forget_peak`."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    rank_one(construct(lambda: build(8, 8)), 8)  # everything is imported now
    before = resident("VmRSS")
    forget_peak()
    trainer = rank_one(construct(build))
    deferred = resident("VmHWM") - before
    held = sum(tensor.nbytes for tensor in trainer.state().values())
    del trainer
    gc.collect()
    model = build()
    size = sum(parameter.nbytes for parameter in model.parameters())
    rank_one(Construction(model))
    whole = resident("VmHWM") - before
    sys.stdout.write(json.dumps({"deferred": deferred, "whole": whole, "held": held, "model": size}))


if __name__ == "__main__":
    main()
