"""DistributedDataParallel with its gradients summed within hosts and then by an aggregating switch.

Start `plait switch` somewhere, set PLAIT_SWITCH (HOST:PORT) and PLAIT_JOB_KEY, and run this under torchrun.
"""

import os

import torch
import torch.distributed as dist

import plait.sync

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 1))
torch.manual_seed(dist.get_rank())  # every rank has rows of its own
way = plait.sync.passing(os.environ["PLAIT_SWITCH"], key=os.environ["PLAIT_JOB_KEY"])
model.register_comm_hook(way, plait.sync.hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    rows = torch.randn(32, 10)
    loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
print(f"rank {dist.get_rank()}: loss {loss.item():.2e}")
way.close()
dist.destroy_process_group()
