"""Plait plans the fastest synchronous way to train a PyTorch model on given machines, and runs it.

plan = plait.plan(model, example_batch, cluster="cluster.toml", batch_size=256)
trainer = plait.parallelize(model, plan, optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4))
loss = trainer.step(batch)
"""

from plait.api import parallelize, plan  # `plan` the function hides `plait.plan` the package on purpose

__all__ = ["parallelize", "plan"]
__version__ = "0.1.0"
