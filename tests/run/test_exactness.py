"""The heart: under any plan a model trains with the numbers of one device.

Loss, gradients, parameters and buffers after two steps in float64, ranks as threads, against gradient accumulation
over the same micro-batches; and that against a plain loop over the model as its author wrote it.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparison import (
    BERT,
    GPT2,
    LIMIT,
    Case,
    adamw,
    assert_trains_like_one_device,
    difference,
    job_case,
    make_case,
    make_plan,
    take_rows,
    train_alone,
    train_eagerly,
    train_on_threads,
)
from torch import Tensor, nn

from plait.run import BadBatch

# (job, rows, micro-batches): small, and well enough conditioned that 1e-9 is about the plan and not about rounding
JOBS = {
    "gpt2": (GPT2, 12, 3),
    "bert": (BERT, 12, 3),
    "vgg": ("vgg16?image=32&width=0.0625&dropout=0&classes=10", 12, 3),
    "resnet": ("resnet50?image=33&width=0.125", 12, 3),
    "unet": ("unet?image=16&width=0.25", 12, 3),
    "inception": ("inception-v3?image=107&width=0.0625&dropout=0&classes=10", 24, 2),
}
LAYOUTS = [(1, 1, 1, 1), (2, 2), (3, 2), (4,)]


def case_of(name: str) -> tuple[Case, int]:
    job, rows, micro_batches = JOBS[name]
    return job_case(job, rows), micro_batches


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "+".join(map(str, layout)))
@pytest.mark.parametrize("name", JOBS)
def test_every_layout_trains_like_one_device(name: str, layout: tuple[int, ...]) -> None:
    case, micro_batches = case_of(name)
    assert_trains_like_one_device(case, make_plan(case, layout, micro_batches))


@pytest.mark.parametrize("name", JOBS)
def test_one_device_trains_like_a_plain_loop_over_the_model(name: str) -> None:
    case, micro_batches = case_of(name)
    plan = make_plan(case, (1,), micro_batches)
    assert difference(train_eagerly(case, plan), train_alone(case, plan)) <= LIMIT


# Schedules, shares, buckets, clipping, optimisers


@pytest.mark.parametrize("layout", [(1, 1, 1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_gpipe_trains_like_one_device(name: str, layout: tuple[int, ...]) -> None:
    case, micro_batches = case_of(name)
    assert_trains_like_one_device(case, make_plan(case, layout, micro_batches, schedule="gpipe"))


@pytest.mark.parametrize("micro_batches", [1, 2, 6])
def test_any_number_of_micro_batches_trains_like_one_device(micro_batches: int) -> None:
    case = job_case(GPT2)
    assert_trains_like_one_device(case, make_plan(case, (1, 2, 1), micro_batches))


@pytest.mark.parametrize("name", ["gpt2", "bert", "unet"])
def test_uneven_shares_train_like_one_device(name: str) -> None:
    case, micro_batches = case_of(name)
    assert_trains_like_one_device(case, make_plan(case, (3, 2), micro_batches, shares=[(3, 1, 2), (1, 4)]))


def test_a_replica_without_rows_of_a_micro_batch_is_no_problem() -> None:
    case = job_case(GPT2)
    plan = make_plan(case, (3, 2), 3, shares=[(8, 1, 1), (1, 9)])  # of 4 rows, some replicas get none
    assert_trains_like_one_device(case, plan)


def test_tied_weights_across_stages_are_summed_over_all_their_holders() -> None:
    case = job_case(GPT2)
    plan = make_plan(case, (2, 1, 2), 3)
    program = assert_trains_like_one_device(case, plan)[0].program(plan.batch_size)
    (tied,) = [bucket for bucket in program.buckets if bucket.tied]
    assert tied.parameters == ("token_embedding.weight",)
    assert tied.ranks == (0, 1, 3, 4)


def test_small_buckets_change_nothing() -> None:
    case = job_case(GPT2)
    plan = make_plan(case, (2, 2), 3, bucket_bytes=2000)
    trainers = assert_trains_like_one_device(case, plan)
    assert len(trainers[0].buckets) > 3


@pytest.mark.parametrize("layout", [(2, 2), (1, 1, 1, 1)], ids=str)
def test_clipping_uses_the_norm_over_all_stages(layout: tuple[int, ...]) -> None:
    case, limit = job_case(GPT2), 0.05
    trainers = assert_trains_like_one_device(case, make_plan(case, layout, 3), clip_norm=limit)
    norms = {trainer.last.gradient_norm for trainer in trainers}
    assert len(norms) == 1, "ranks disagree about the norm"
    assert norms.pop() > 2 * limit, "nothing was clipped, so nothing was tested"


def test_clipping_on_one_device_is_pytorchs() -> None:
    case = job_case(GPT2)
    plan = make_plan(case, (1,), 3)
    eager = train_eagerly(case, plan, clip_norm=0.05)
    assert difference(eager, train_alone(case, plan, clip_norm=0.05)) <= LIMIT


def test_adamw_trains_like_one_device() -> None:
    # A U-Net has no gradient that is zero but for rounding, which Adam would blow up to a step of its own.
    case = job_case(JOBS["unet"][0])
    assert_trains_like_one_device(case, make_plan(case, (2, 2), 3), optimizer=adamw)


# Batches


@pytest.mark.parametrize("layout", [(2, 2), (3, 2), (4,), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("rows", [7, 5, 2, 1])
def test_a_short_last_batch_trains_like_one_device(layout: tuple[int, ...], rows: int) -> None:
    case = job_case(GPT2)
    batches = [case.batches[0], take_rows(case.batches[1], 0, rows)]
    assert_trains_like_one_device(case, make_plan(case, layout, 3), batches=batches)


@pytest.mark.parametrize(("layout", "rows"), [((2, 2), 7), ((2, 2), 2), ((3, 2), 5), ((1, 1, 1), 1)], ids=str)
def test_a_short_last_batch_is_exact_through_batch_norm(layout: tuple[int, ...], rows: int) -> None:
    case = job_case(JOBS["unet"][0])
    batches = [case.batches[0], take_rows(case.batches[1], 0, rows)]
    assert_trains_like_one_device(case, make_plan(case, layout, 3), batches=batches)


def test_a_batch_that_leaves_a_batch_norm_replica_without_rows_is_refused_rather_than_hung() -> None:
    case = job_case(JOBS["unet"][0])
    short = take_rows(case.batches[1], 0, 2)
    with pytest.raises(BadBatch, match="2 rows leaves one of the 3 replicas of stage 0 without rows"):
        train_on_threads(case, make_plan(case, (3, 2), 3), batches=[case.batches[0], short])
    with pytest.raises(BadBatch, match="more even shares"):
        train_on_threads(case, make_plan(case, (3, 2), 3, shares=[(8, 1, 1), (1, 9)]))


@cache
def unevenly_masked() -> Case:
    """BERT with 0 to 4 targets in a row: some replicas of a micro-batch have none at all."""
    case = job_case(BERT)
    batches = []
    for batch in case.batches:
        labels = batch["labels"].clone()
        for row in range(len(labels)):
            targets = (labels[row] != -100).nonzero().flatten()
            labels[row, targets[row % 5 :]] = -100
        batches.append({**batch, "labels": labels})
    return Case(case.module, case.model, tuple(batches))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rows_with_different_numbers_of_targets_train_like_one_device(layout: tuple[int, ...]) -> None:
    case = unevenly_masked()
    counts = (case.batches[0]["labels"] != -100).sum(1)
    assert counts.min() == 0 < counts.max() == 4
    assert_trains_like_one_device(case, make_plan(case, layout, 3))


def test_rows_with_different_numbers_of_targets_are_what_pytorch_makes_of_them() -> None:
    case = unevenly_masked()
    plan = make_plan(case, (1,), 3)
    assert difference(train_eagerly(case, plan), train_alone(case, plan)) <= LIMIT


@dataclass
class ModelOutput:
    logits: Tensor
    loss: Tensor


class ReturnsAnObject(nn.Module):
    """Several inputs, given by name in another order than `forward` has them, and an object with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.numbers = nn.Linear(3, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, numbers: Tensor, words: Tensor, scale: Tensor, labels: Tensor) -> ModelOutput:
        hidden = (self.words(words).mean(1) + self.numbers(numbers)).tanh() * scale[:, None]
        logits = self.head(hidden)
        return ModelOutput(logits, F.cross_entropy(logits, labels))


@cache
def object_case() -> Case:
    torch.manual_seed(0)
    batches = [
        {
            "labels": torch.randint(0, 5, (8,)),
            "words": torch.randint(0, 11, (8, 4)),
            "scale": torch.rand(8),
            "numbers": torch.randn(8, 3),
        }
        for _ in range(2)
    ]
    return make_case(ReturnsAnObject(), batches)


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 2)], ids=str)
def test_several_inputs_and_a_model_that_returns_an_object(layout: tuple[int, ...]) -> None:
    case = object_case()
    plan = make_plan(case, layout, 2)
    assert_trains_like_one_device(case, plan)
    assert difference(train_eagerly(case, plan), train_alone(case, plan)) <= LIMIT


def test_the_order_of_a_batchs_keys_does_not_matter() -> None:
    case = object_case()
    plan = make_plan(case, (1, 1), 2)
    turned = [{name: batch[name] for name in reversed(batch)} for batch in case.batches]
    found, _ = train_on_threads(case, plan, batches=turned)
    assert difference(found, train_alone(case, plan)) <= LIMIT


@pytest.mark.parametrize("layout", [(1, 1), (2, 2), (3,)], ids=str)
def test_a_tuple_batch_with_a_separate_loss(layout: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    batches = [(torch.randn(9, 6), torch.randn(9, 2)) for _ in range(2)]
    case = make_case(module, batches, lambda outputs, batch: F.smooth_l1_loss(outputs, batch[1]))
    plan = make_plan(case, layout, 3)
    assert_trains_like_one_device(case, plan)
    assert difference(train_eagerly(case, plan), train_alone(case, plan)) <= LIMIT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda b: {n: t for n, t in b.items() if n != "words"},
            "a dictionary of labels, scale, numbers, but the plan",
        ),
        (lambda b: {**b, "extra": b["scale"]}, "scale, numbers, extra, but the plan was made with"),
        (
            lambda b: {**b, "words": b["words"][:, :3]},
            r"\['words'\] has shape \(8, 3\), but the plan was made with \(8, 4\)",
        ),
        (lambda b: {**b, "scale": b["scale"][:5]}, "scale has 5 rows where the batch has 8"),
        (lambda b: {**b, "scale": 2.0}, r"\['scale'\] is a float, but the plan was made with a tensor"),
        (lambda b: tuple(b.values()), "a tuple of 4, but the plan was made with a dictionary"),
        (lambda b: {n: t[:0] for n, t in b.items()}, "the batch has no rows"),
    ],
    ids=["missing", "extra", "shape", "ragged", "number", "tuple", "empty"],
)
def test_a_batch_unlike_the_example_is_refused(change: Any, message: str) -> None:
    case = object_case()
    with pytest.raises(BadBatch, match=message):
        train_on_threads(case, make_plan(case, (1,), 2), batches=[change(case.batches[0])])
