"""Overlap moves when sums pass and weights are updated, never a number."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from comparison import GPT2, adamw, fresh, in_float64, job_case, make_plan, train_on_threads
from in_process import on_threads

from plait.jobs import load_job
from plait.plan import Plan
from plait.program import Op
from plait.run import Trainer

STEPS = 50


@pytest.fixture(scope="module")
def batches() -> list[object]:
    return [in_float64(batch) for batch in islice(load_job(GPT2).batches(12, 0), STEPS)]


def plan_with(overlap: str, *, schedule: str = "1f1b", **options: object) -> Plan:
    made = make_plan(job_case(GPT2), [2, 2], 3, schedule=schedule, bucket_bytes=4096, overlap=overlap)
    return replace(made, stages=tuple(replace(stage, **options) for stage in made.stages))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_fifty_steps_of_adamw_end_with_the_same_bits_whatever_the_overlap(schedule: str, batches: list[object]) -> None:
    found = [
        train_on_threads(job_case(GPT2), plan, optimizer=adamw, batches=batches)[0]
        for plan in (
            plan_with("off", schedule=schedule),
            plan_with("backward", schedule=schedule),
            plan_with("full", schedule=schedule),
            plan_with("full", schedule=schedule, sum_order=(3, 0)),
            plan_with("full", schedule=schedule, recompute=True),
        )
    ]
    first, *others = found
    assert first.losses[-1] < first.losses[0]
    for other in others:
        assert other.losses == first.losses
        assert all(torch.equal(other.state[name], tensor) for name, tensor in first.state.items())
        assert all(torch.equal(other.gradients[name], tensor) for name, tensor in first.gradients.items())


def test_learning_rates_go_on_with_the_updates_they_are_for(batches: list[object]) -> None:
    case = job_case(GPT2)

    def trained(overlap: str) -> dict[str, torch.Tensor]:
        def work(transport: object) -> dict[str, torch.Tensor]:
            trainer = Trainer(
                fresh(case.model),
                plan_with(overlap),
                transport,  # type: ignore[arg-type]
                optimizer=adamw,
                scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
            )
            for batch in batches[:5]:
                trainer.step(batch)
            return {name: tensor.detach().clone() for name, tensor in trainer.state().items()}

        return {name: tensor for own in on_threads(4, work) for name, tensor in own.items()}

    off, full = trained("off"), trained("full")
    assert all(torch.equal(full[name], tensor) for name, tensor in off.items())


def test_a_step_leaves_its_sums_under_way_and_reading_weights_waits_for_them(batches: list[object]) -> None:
    case = job_case(GPT2)

    def work(transport: object) -> tuple[int, int]:
        trainer = Trainer(fresh(case.model), plan_with("full"), transport, optimizer=adamw)  # type: ignore[arg-type]
        updated = []
        for bucket in trainer.buckets.values():
            bucket.optimizer.register_step_post_hook(lambda *_: updated.append(1))
        trainer.step(batches[0])
        before = len(updated)
        trainer.state()
        return before, len(updated) - len(trainer.buckets)

    assert all(lacking == 0 for _, lacking in on_threads(4, work))


def test_sums_begin_while_the_backward_goes_on(batches: list[object]) -> None:
    _, trainers = train_on_threads(job_case(GPT2), plan_with("backward"), optimizer=adamw, batches=batches[:2])
    for trainer in trainers:
        begun = [span.start for span in trainer.last.spans if span.lane == "reduce"]
        last = max(span.end for span in trainer.last.spans if span.what.op is Op.B)
        assert min(begun) < last
