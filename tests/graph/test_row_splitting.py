"""A stage whose rows lie on several replicas computes what one device would."""

import random

import pytest
import torch
import torch.nn.functional as F
from graph_models import EXAMPLES, ROW_MIXING_EXAMPLES, ROWS, BatchNormed, TiedEmbedding, captured
from stage_runner import FakeReplicas, Meeting, assert_close, assert_same, on_threads, run_eagerly, run_staged
from torch import Tensor, nn

from plait.graph.synced import batch_norm_over_replicas, count_targets, cross_entropy_over_replicas

SPLITS = [(8,), (4, 4), (5, 3), (1, 6, 1), (2, 2, 2, 2)]


def random_spans(chosen: random.Random, rows: int) -> list[tuple[int, int]]:
    inner = sorted(chosen.sample(range(1, rows), chosen.randint(0, 2)))
    return list(zip([0, *inner], [*inner, rows], strict=True))


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e not in ROW_MIXING_EXAMPLES], ids=lambda e: e.__name__)
def test_a_model_whose_rows_are_their_own_can_be_split_by_rows_anywhere(example):
    module, batch, model = captured(example)
    assert all(mixer.remedy for mixer in model.graph.row_mixers)
    expected = run_eagerly(module, batch)
    chosen = random.Random(1)
    for _ in range(3):
        num_atoms = len(model.graph.atoms)
        boundaries = sorted(chosen.sample(range(1, num_atoms), min(chosen.randint(0, 3), num_atoms - 1)))
        spans = [random_spans(chosen, ROWS) for _ in range(len(boundaries) + 1)]
        assert_same(run_staged(model, batch, boundaries, spans=spans), expected)


# BatchNorm


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("shape", [(8, 3), (8, 3, 5), (8, 3, 2, 4)], ids=len)
def test_batch_norm_equals_that_of_the_whole_batch(shape, split):
    check_batch_norm(torch.randn(shape).double() * 3 + 5, split, torch.randn(3).double(), torch.randn(3).double())


@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_batch_norm_may_lack_weight_or_bias(has_weight, has_bias):
    weight = torch.randn(3).double() if has_weight else None
    bias = torch.randn(3).double() if has_bias else None
    check_batch_norm(torch.randn(8, 3).double(), (5, 3), weight, bias)


def test_batch_norm_may_keep_no_statistics():
    check_batch_norm(torch.randn(8, 3).double(), (5, 3), None, None, keeps_statistics=False)


def test_batch_norm_with_a_frozen_weight_still_trains_its_bias():
    weight, bias = torch.randn(3).double(), torch.randn(3).double()
    check_batch_norm(torch.randn(8, 3).double(), (5, 3), weight, bias, frozen=True)


def test_batch_norm_of_far_away_values_loses_no_precision():
    check_batch_norm(torch.randn(8, 3).double() + 1e5, (3, 5), None, None, tolerance=1e-9)


def test_batch_norm_in_16_bits_keeps_its_statistics_in_32():
    x = (torch.randn(600, 2) + 4).to(torch.bfloat16)
    whole = F.batch_norm(x, torch.zeros(2), torch.ones(2), torch.ones(2), torch.zeros(2), training=True)
    parts = run_batch_norm(x, (350, 250), torch.ones(2), torch.zeros(2), keeps_statistics=True)
    found = torch.cat([part.y for part in parts])
    assert found.dtype == torch.bfloat16
    assert (found.float() - whole.float()).abs().max() <= 2**-6


class Part:
    """One replica's share of a BatchNorm: inputs, result and statistics."""

    def __init__(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, *, keeps_statistics: bool) -> None:
        features = x.shape[1]
        self.x = x.clone().requires_grad_()
        self.weight = None if weight is None else weight.detach().clone().requires_grad_(weight.requires_grad)
        self.bias = None if bias is None else bias.detach().clone().requires_grad_(bias.requires_grad)
        wide = torch.promote_types(x.dtype, torch.float32)
        self.mean = torch.zeros(features, dtype=wide) if keeps_statistics else None
        self.variance = torch.ones(features, dtype=wide) if keeps_statistics else None
        self.y = x


def run_batch_norm(
    x: Tensor, split: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, *, keeps_statistics: bool
) -> list[Part]:
    parts = [Part(rows, weight, bias, keeps_statistics=keeps_statistics) for rows in x.split(split)]
    meeting = Meeting(len(parts))
    seed = torch.arange(x.numel()).reshape(x.shape).to(x.dtype).sin()

    def run(member: int) -> None:
        part = parts[member]
        part.y = batch_norm_over_replicas(
            FakeReplicas(meeting, member), part.x, part.weight, part.bias, part.mean, part.variance, 0.3, 1e-5
        )
        part.y.backward(seed.split(split)[member])

    on_threads(len(parts), run)
    return parts


def check_batch_norm(
    x: Tensor,
    split: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    keeps_statistics: bool = True,
    frozen: bool = False,
    tolerance: float = 1e-12,
) -> None:
    for parameter in (weight, bias):
        if parameter is not None:
            parameter.requires_grad_(not (frozen and parameter is weight))
    parts = run_batch_norm(x, split, weight, bias, keeps_statistics=keeps_statistics)
    whole = Part(x, weight, bias, keeps_statistics=keeps_statistics)
    y = F.batch_norm(whole.x, whole.mean, whole.variance, whole.weight, whole.bias, True, 0.3, 1e-5)
    y.backward(torch.arange(x.numel()).reshape(x.shape).to(x.dtype).sin())

    assert_close("result", torch.cat([part.y for part in parts]), y, tolerance)
    assert_close("gradient of x", torch.cat([part.x.grad for part in parts]), whole.x.grad, tolerance)
    for name in ("weight", "bias"):
        expected = getattr(whole, name)
        if expected is not None and expected.grad is not None:
            total = torch.stack([getattr(part, name).grad for part in parts]).sum(0)
            assert_close(f"gradient of {name}", total, expected.grad, tolerance)
        elif expected is not None:
            assert all(getattr(part, name).grad is None for part in parts)
    for part in parts if keeps_statistics else ():
        assert_close("running mean", part.mean, whole.mean, tolerance)
        assert_close("running variance", part.variance, whole.variance, tolerance)


# Cross-entropy

CLASSES = 5
KINDS = {
    "plain": {},
    "some targets ignored": {"ignore_index": 2},
    "class weights": {"weight": torch.rand(CLASSES).double() + 0.1},
    "weights, some ignored": {"weight": torch.rand(CLASSES).double() + 0.1, "ignore_index": 1},
    "label smoothing": {"label_smoothing": 0.2},
    "all at once": {"weight": torch.rand(CLASSES).double() + 0.1, "ignore_index": 0, "label_smoothing": 0.3},
}


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
def test_cross_entropy_divides_by_the_counted_targets_of_all_replicas(options, split):
    check_cross_entropy(torch.randn(8, CLASSES).double(), torch.randint(0, CLASSES, (8,)), split, options)


@pytest.mark.parametrize("shape", [(8, CLASSES, 3), (8, CLASSES, 2, 3)], ids=len)
def test_cross_entropy_counts_every_position_of_a_row(shape):
    logits, target = torch.randn(shape).double(), torch.randint(0, CLASSES, (shape[0], *shape[2:]))
    check_cross_entropy(logits, target, (1, 5, 2), {"ignore_index": 3})


@pytest.mark.parametrize(
    "options", [{}, KINDS["class weights"], KINDS["label smoothing"]], ids=["plain", "weights", "smooth"]
)
def test_cross_entropy_takes_probabilities_as_targets(options):
    check_cross_entropy(torch.randn(8, CLASSES).double(), torch.rand(8, CLASSES).double(), (3, 5), options)


@pytest.mark.parametrize("options", [{}, KINDS["weights, some ignored"]], ids=["plain", "weights, some ignored"])
def test_negative_log_likelihood_counts_the_same_way(options):
    x = torch.randn(8, CLASSES).double().log_softmax(1)
    check_cross_entropy(x, torch.randint(0, CLASSES, (8,)), (6, 2), options, likelihood=True)


def test_a_replica_without_any_counted_target_adds_nothing():
    target = torch.tensor([-100, -100, 1, 2])
    check_cross_entropy(torch.randn(4, CLASSES).double(), target, (2, 2), {})


def check_cross_entropy(x, target, split, options, *, likelihood=False):
    function = F.nll_loss if likelihood else F.cross_entropy
    whole = x.clone().requires_grad_()
    expected = function(whole, target, **options)
    expected.backward()
    weight, ignored = options.get("weight"), options.get("ignore_index", -100)
    total = count_targets(target, weight, ignored)
    loss, gradients = torch.zeros(()).double(), []
    for rows, targets in zip(x.split(split), target.split(split), strict=True):
        own, share = rows.clone().requires_grad_(), len(rows) / len(x)
        part = cross_entropy_over_replicas(
            total, share, likelihood, own, targets, weight, ignored, options.get("label_smoothing", 0.0)
        )
        (part * share).backward()
        loss += part.detach() * share
        gradients.append(own.grad)
    assert_close("loss", loss, expected)
    assert_close("gradient", torch.cat(gradients), whole.grad)


class TargetsOverwritten(TiedEmbedding):
    """Some targets are taken out by writing into them through views, as collators and models do."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        labels = labels.clone()
        labels[:, 0] = -100
        labels[:, 1:3][tokens[:, 1:3] < 7] = -100
        logits = self.head(self.dense(self.embedding(tokens)).tanh())
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class SeveralLosses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 4)])
        self.register_buffer("weight", torch.rand(4))

    def batch(self) -> dict[str, Tensor]:
        labels = torch.randint(0, 3, (ROWS,))
        labels[::2] = -100
        return {"x": torch.randn(ROWS, 8).double(), "a": labels, "b": torch.randint(0, 4, (ROWS,))}

    def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        hidden = self.body(x).tanh()
        first = F.cross_entropy(self.heads[0](hidden), a)
        second = F.cross_entropy(self.heads[1](hidden), b, weight=self.weight, label_smoothing=0.1)
        return first + 0.5 * second + hidden.square().mean() / 10 + 0.01 * self.body.weight.square().sum()


@pytest.mark.parametrize("example", [TargetsOverwritten, SeveralLosses, BatchNormed], ids=lambda e: e.__name__)
def test_every_way_to_divide_the_rows_gives_the_same_numbers(example):
    module, batch, model = captured(example)
    expected = run_eagerly(module, batch)
    for edges in ([3], [1], [5], [1, 2], [2, 5]):
        spans = list(zip([0, *edges], [*edges, ROWS], strict=True))
        assert_same(run_staged(model, batch, spans=[spans]), expected)
