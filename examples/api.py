"""Plait from a script: alone for one rank, or `torchrun --nproc-per-node 2 examples/api.py`."""

import os

import torch
from torch import nn

import plait

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))


def loss(outputs: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(outputs, batch[1])


def make_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    points = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))
    return points, points.square().sum(1, keepdim=True)


ranks = int(os.environ.get("WORLD_SIZE", "1"))
plan = plait.plan(model, make_batch(0), cluster=f"local:{ranks}", loss=loss, stages=ranks, micro_batches=4)
trainer = plait.parallelize(model, plan, loss=loss, optimizer=lambda params: torch.optim.Adam(params, lr=1e-2))
for step in range(50):
    value = trainer.step(make_batch(step))
    if trainer.rank == 0 and step % 10 == 0:
        print(f"step {step}: loss {value:.4f}")
trainer.close()
