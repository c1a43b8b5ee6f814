"""Several runs in one set of real processes: `python several_runs.py FOLDER`.

A process takes seconds to import PyTorch and to capture. This one does both once and then forks its
ranks, which meet over gloo, train by `plait.parallelize` and leave what they saw in FOLDER/rank-N.json.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from comparison import fresh, in_float64, sgd

import plait
import plait.run.trainer as trainer_module
from plait.graph import Model, build_graph
from plait.jobs import load_job
from plait.plan import Plan, load_plan
from plait.plan.batches import example
from plait.run.stage import InFlight, StageRun
from plait.simulate import Timeline

LIMIT = 90.0


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    runs = json.loads((folder / "runs.json").read_text())
    models = {job: captured(job, plan) for job, plan in {r["job"]: load_plan(r["plan"]) for r in runs}.items()}
    num_ranks = load_plan(runs[0]["plan"]).num_ranks
    children = [fork(folder, runs, models, rank, num_ranks) for rank in range(num_ranks)]
    limit = time.monotonic() + LIMIT
    codes = {}
    while len(codes) < num_ranks and time.monotonic() < limit and not any(codes.values()):
        for pid in children:
            if pid not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = ended[1]
        time.sleep(0.02)
    for pid in set(children) - set(codes):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 0 if len(codes) == num_ranks and not any(codes.values()) else 1


def captured(job_name: str, plan: Plan) -> Model:
    job = load_job(job_name)
    torch.manual_seed(0)
    return build_graph(job.model().double(), example(plan.batch), loss=job.loss)


def fork(folder: Path, runs: list[dict[str, Any]], models: dict[str, Model], rank: int, num_ranks: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        results = []
        for number, run in enumerate(runs):
            # `parallelize` would capture the same model again, which takes most of the time
            trainer_module.build_graph = lambda *_, job=run["job"], **__: fresh(models[job])
            results.append(train(folder / f"store-{number}", run, rank, num_ranks))
        (folder / f"rank-{rank}.json").write_text(json.dumps(results))
        os._exit(0)
    finally:
        os._exit(1)


def train(store: Path, run: dict[str, Any], rank: int, num_ranks: int) -> dict[str, Any]:
    dist.init_process_group("gloo", store=dist.FileStore(str(store), num_ranks), rank=rank, world_size=num_ranks)
    job, plan = load_job(run["job"]), load_plan(run["plan"] if rank == 0 else run.get("others' plan", run["plan"]))
    first_outputs: dict[str, list[Any]] = {}
    trainer = plait.parallelize(
        job.model().double(), plan, optimizer=sgd, loss=job.loss, seed=run["seed"], timeout_seconds=30
    )
    watch(trainer.stages, first_outputs)
    batches = job.batches(plan.batch_size, 0)
    losses = [trainer.step(in_float64(next(batches))) for _ in range(2)]
    if run.get("save"):
        trainer.save(run["save"])
    trainer.close()
    timeline = Timeline("measured", num_ranks, tuple(trainer.last.spans), 0.0)
    outputs = first_outputs if run.get("watch") else {}
    return {"losses": losses, "order": timeline.compute_order(rank), "outputs": outputs}


def watch(stages: dict[int, StageRun], outputs: dict[str, list[Any]]) -> None:
    """Keeps what each stage sends for the first micro-batch."""
    for index, stage in stages.items():
        forward = stage.forward

        def noting(micro: InFlight, *rest: Any, index: int = index, forward: Any = forward) -> None:
            forward(micro, *rest)
            outputs.setdefault(str(index), [value.tolist() for value in micro.outputs.values()])

        stage.forward = noting  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
