"""One rank of a real run that says what it held: `python _memory_rank.py JOB PLAN OUT OPTIMIZER`.

Two measures of the same steps. PyTorch's profiler reports every allocation of a tensor, in C++ too; with the sizes of
all tensors there are between steps it gives the most held. The kernel's peak of the resident set sees all else of the
process, and says the same of tensors where the C library hands freed memory back at once (so the bench sets it).
"""

import gc
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import plait.run.trainer as trainer_module
from plait.jobs import load_job
from plait.jobs.optimizers import momentum
from plait.plan import load_plan
from plait.run.settings import Settings
from plait.run.trainer import Trainer, parallelize
from plait.run.worker import build_model, job_batches

WARM_UP = 2


def main(job_name: str, plan_path: str, out: str, optimizer: str) -> None:
    torch.set_num_threads(1)
    trainer_module.keep_freed_memory = lambda: True  # freed memory must leave the resident set
    job, plan = load_job(job_name), load_plan(Path(plan_path))
    settings = Settings(job=job_name, plan=Path(plan_path), steps=1, batch_size=plan.batch_size)
    batch = next(iter(job_batches(job, settings)))
    before = _storages(gc.get_objects())  # the job's data is not the rank's
    trainer = parallelize(
        partial(build_model, job, settings),
        plan,
        optimizer=job.optimizer if optimizer == "job" else partial(momentum, learning_rate=0.01),
        loss=job.loss,
    )
    for _ in range(WARM_UP):
        trainer.step(batch)
    gc.collect()
    made = [size for address, size in _storages(gc.get_objects()).items() if address not in before]
    static = sum(made) + sum(leaf.nbytes for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor))
    found = {
        "static": static,
        "profiled": static + profiled_peak(trainer, batch),
        "resident": static + resident_peak(trainer, batch),
    }
    Path(f"{out}.{trainer.rank}.json").write_text(json.dumps(found))
    trainer.close()


def profiled_peak(trainer: Trainer, batch: Any) -> int:
    """The most one step holds of tensors beyond those there are between steps."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        trainer.step(batch)
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def resident_peak(trainer: Trainer, batch: Any) -> int:
    """The same of the resident set."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    trainer.step(batch)
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _storages(objects: list[Any]) -> dict[int, int]:
    """Bytes by address of the memory of all tensors."""
    return {
        s.data_ptr(): s.nbytes()
        for t in objects
        if type(t) in (Tensor, torch.nn.Parameter) and t.device.type == "cpu" and t.layout == torch.strided
        for s in [t.untyped_storage()]
        if s.nbytes()
    }


if __name__ == "__main__":
    assert os.environ["RANK"]
    main(*sys.argv[1:])
