"""An encoder-decoder and a model with long skips, trained in real processes: the numbers of one process."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from comparison import LIMIT, fresh, in_float64, job_case, make_plan, sizes
from text_models import T5

from plait.cli.verify import largest_difference
from plait.jobs import load_job
from plait.plan import save_plan
from plait.run import OneDevice
from plait.run.checkpoint import load_tensors
from plait.run.session import run_plan
from plait.run.settings import Settings

STEPS = 20
LAYOUT = (1, 2, 1)  # the middle stage splits its rows over two of the four processes


def t5_job(folder: Path) -> str:
    config = {**T5, "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "dropout_rate": 0.0}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return f"hf:{folder}?sequence=8"


@pytest.mark.parametrize("name", ["U-Net", pytest.param("T5", marks=pytest.mark.slow)])
def test_three_stages_on_four_processes_train_like_one(name: str, tmp_path: Path, warm_ranks: Any) -> None:
    job_name = "unet?image=16&width=0.25" if name == "U-Net" else t5_job(tmp_path / "t5")
    case, job = job_case(job_name), load_job(job_name)
    plan = make_plan(case, LAYOUT, micro_batches=2)
    save_plan(plan, tmp_path / "plan.json")
    settings = Settings(
        job=job_name,
        plan=tmp_path / "plan.json",
        steps=STEPS,
        batch_size=plan.batch_size,
        dtype="float64",
        timeout_seconds=60,
        gradients=tmp_path / "results",
    )
    record = run_plan(settings, plan, tmp_path)
    one = OneDevice(fresh(case.model), job.optimizer)
    batches = itertools.islice(job.batches(plan.batch_size, 0), STEPS)
    losses = [one.step(in_float64(batch), sizes(plan, batch)) for batch in batches]
    assert record.losses == pytest.approx(losses, rel=LIMIT, abs=0)
    found = load_tensors(tmp_path / "results" / "model")
    for kind, tensors in (("gradient/", one.gradients()), ("value/", {**one.parameters, **one.buffers()})):
        own = {n.removeprefix(kind): t for n, t in found.items() if n.startswith(kind)}
        # Adam makes steps of the rounding in a gradient that is really zero: weights are compared at the model's scale.
        floor = 1e-6 if kind == "gradient/" else 1.0
        assert largest_difference(own, {n: t.detach() for n, t in tensors.items()}, floor=floor) <= LIMIT
