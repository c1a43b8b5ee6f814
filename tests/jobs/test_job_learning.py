"""With its own data and optimizer, every kind of job really learns."""

import math

import pytest
import torch

from plait.jobs import load_job


def _losses(spec: str, batch_size: int, steps: int) -> list[float]:
    job = load_job(spec)
    torch.manual_seed(0)
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    batches = job.batches(batch_size, 0)
    losses = []
    for _ in range(steps):
        loss = model(**next(batches))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("spec", "batch_size", "steps", "factor"),
    [
        ("gpt2-tiny?layers=2&sequence=64", 8, 50, 0.8),
        ("bert-tiny?layers=2&sequence=64", 8, 50, 0.8),
        ("resnet50?image=32&width=0.25&classes=4", 16, 30, 0.5),
        ("alexnet?image=64&width=0.25&classes=4", 16, 40, 0.7),
        ("unet?image=32&width=0.25", 8, 30, 0.5),
    ],
)
def test_the_loss_falls(spec, batch_size, steps, factor):
    losses = _losses(spec, batch_size, steps)
    assert all(math.isfinite(loss) for loss in losses)
    first, last = losses[0], sum(losses[-10:]) / 10
    assert last < factor * first, f"{first:.3f} -> {last:.3f}"
