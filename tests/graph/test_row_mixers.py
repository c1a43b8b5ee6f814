"""Operations whose rows depend on one another are found before a plan splits the rows."""

import pytest
import torch
import torch.nn.functional as F
from graph_models import ROW_MIXING_EXAMPLES, Example, captured
from torch import Tensor, nn

from plait.graph import RowMixer, build_graph

WIDTH = 8


class Mixing(Example):
    """`loss(h, x, t)` with `h` the rows after a dense layer."""

    def __init__(self, loss) -> None:
        super().__init__()
        self.loss = loss
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.loss(self, self.second(self.first(x)), x, t)


def mixers(loss) -> tuple[RowMixer, ...]:
    module = Mixing(loss).double()
    return build_graph(module, module.batch()).graph.row_mixers


SPLITTABLE = {
    "mean of squares": lambda m, h, x, t: (h - t).square().mean(),
    "a mean loss": lambda m, h, x, t: F.smooth_l1_loss(h, t),
    "means added and scaled": lambda m, h, x, t: 0.5 * F.mse_loss(h, t) + h.abs().mean() / 3 - 1,
    "a mean times a parameter": lambda m, h, x, t: F.mse_loss(h, t) * m.log_scale.exp(),
    "several means stacked": lambda m, h, x, t: torch.stack([F.mse_loss(h, t), h.mean()]).sum(),
    "a mean plus a penalty on the weights": lambda m, h, x, t: F.mse_loss(h, t) + m.first.weight.square().sum(),
    "a sum divided by the rows": lambda m, h, x, t: (h - t).square().sum() / x.size(0),
    "a sum divided by all entries": lambda m, h, x, t: (h - t).square().sum() / (x.size(0) * WIDTH),
    "a mean of means": lambda m, h, x, t: h.square().mean(0).mean(),
    "a softmax over features": lambda m, h, x, t: F.mse_loss(h.softmax(1), t),
    "a row's own entry by number": lambda m, h, x, t: h[torch.arange(x.size(0)), 3].mean(),
    "rows repeated in order": lambda m, h, x, t: h.repeat_interleave(2, dim=0).mean(),
    "rows folded in order": lambda m, h, x, t: h.view(-1, 4).tanh().view(-1, WIDTH).mean(),
    "features before rows": lambda m, h, x, t: F.mse_loss(h.t().cumsum(0).t(), t),
    "some entries overwritten": lambda m, h, x, t: h.masked_fill(t > 0, 0).mean(),
}
MIXED = {
    "a sum": lambda m, h, x, t: (h - t).square().sum(),
    "a sum loss": lambda m, h, x, t: F.mse_loss(h, t, reduction="sum"),
    "a sum divided by a constant": lambda m, h, x, t: h.square().sum() / 100,
    "a root of a mean": lambda m, h, x, t: F.mse_loss(h, t).sqrt(),
    "a mean squared": lambda m, h, x, t: (h.mean(0) * h.mean(0)).sum(),
    "a product of two means": lambda m, h, x, t: h.mean() * t.mean(),
    "one over a mean": lambda m, h, x, t: m.log_scale / h.square().mean(),
    "a mean times the batch": lambda m, h, x, t: (h.mean() * t).mean(),
    "a root of a cross-entropy": lambda m, h, x, t: F.cross_entropy(h, t.argmax(1)).sqrt(),
    "rows against rows": lambda m, h, x, t: F.cross_entropy(h @ t.t(), torch.arange(x.size(0))),
    "a softmax over rows": lambda m, h, x, t: F.mse_loss(h.softmax(0), t),
    "a running sum over rows": lambda m, h, x, t: F.mse_loss(h.cumsum(0), t),
    "rows in another order": lambda m, h, x, t: F.mse_loss(h.flip(0), t),
    "rows sorted": lambda m, h, x, t: F.mse_loss(h.sort(dim=0).values, t),
    "rows picked by number": lambda m, h, x, t: F.mse_loss(h[t.argsort(0)[:, 0]], t),
    "rows gathered": lambda m, h, x, t: F.mse_loss(h.gather(0, t.argsort(0)), t),
    "rows behind each other": lambda m, h, x, t: torch.cat([h, t], dim=0).tanh().mean(),
    "rows repeated as a block": lambda m, h, x, t: h.repeat(2, 1).mean(),
    "rows folded behind features": lambda m, h, x, t: h.t().reshape(-1, 2).mean(),
    "attention between rows": lambda m, h, x, t: F.scaled_dot_product_attention(h[None], h[None], h[None]).mean(),
    "convolution over rows": lambda m, h, x, t: F.avg_pool1d(h.t()[None], 3, 1, 1).mean(),
    "a frequency along rows": lambda m, h, x, t: torch.fft.fft(h, dim=0).abs().mean(),
    "the largest of all": lambda m, h, x, t: F.mse_loss(h / h.max(), t),
    "targets normalised over the batch": lambda m, h, x, t: F.mse_loss(h, (t - t.mean(0)) / t.std()),
    "the number of rows as a factor": lambda m, h, x, t: F.mse_loss(h * x.size(0), t),
    "the number of rows as a share": lambda m, h, x, t: F.mse_loss(h, t) * (1.0 / x.size(0)),
    "a row's place as a value": lambda m, h, x, t: F.mse_loss(h + torch.arange(x.size(0))[:, None], t),
    "the first row": lambda m, h, x, t: F.mse_loss(h, t) + h[0].mean(),
    "a softmax over rows in a region": lambda m, h, x, t: F.mse_loss(h * without_gradients(h, 0), t),
}  # fmt: skip


def without_gradients(h: Tensor, dim: int) -> Tensor:
    with torch.no_grad():
        return h.softmax(dim)


@pytest.mark.parametrize("loss", SPLITTABLE.values(), ids=SPLITTABLE.keys())
def test_these_can_be_split_by_rows(loss):
    assert mixers(loss) == ()


@pytest.mark.parametrize("loss", MIXED.values(), ids=MIXED.keys())
def test_these_mix_rows(loss):
    found = [mixer for mixer in mixers(loss) if not mixer.remedy]
    assert found
    assert found[0].why


@pytest.mark.parametrize("example", ROW_MIXING_EXAMPLES, ids=lambda example: example.__name__)
def test_models_whose_rows_cannot_be_split_are_told(example):
    assert any(not mixer.remedy for mixer in captured(example)[2].graph.row_mixers)


def test_batch_norm_can_be_split_by_exchanging_its_statistics():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Flatten())
    batch = (torch.randn(6, 4), torch.randn(6, 4))
    graph = build_graph(module, batch, loss=lambda outputs, batch: F.mse_loss(outputs, batch[1])).graph
    (mixer,) = graph.row_mixers
    assert (mixer.module, mixer.remedy) == ("1", "exchange")
    assert mixer.node in graph.atoms[mixer.atom].nodes


def test_batch_norm_in_evaluation_mixes_nothing():
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> "Frozen":
            return super().train(False)

    module = nn.Sequential(nn.Linear(4, 4), Frozen(4))
    batch = (torch.randn(6, 4), torch.randn(6, 4))
    graph = build_graph(module, batch, loss=lambda outputs, batch: F.mse_loss(outputs, batch[1])).graph
    assert graph.row_mixers == ()


def test_cross_entropy_can_be_split_by_counting_targets_that_come_with_the_batch():
    (mixer,) = mixers(lambda m, h, x, t: F.cross_entropy(h, t.argmax(1)))
    assert mixer.remedy == "count"


def test_cross_entropy_with_targets_made_by_the_model_cannot_be_counted_beforehand():
    (mixer,) = mixers(lambda m, h, x, t: F.cross_entropy(h, h.argmax(1)))
    assert mixer.remedy == ""


def test_a_mixer_among_nodes_every_stage_computes_is_told_for_each_stage_that_does():
    def loss(m: Mixing, h: Tensor, x: Tensor, t: Tensor) -> Tensor:
        centred = t - t.mean(0)
        return F.mse_loss((h * centred).tanh() + centred, t)

    module = Mixing(loss).double()
    graph = build_graph(module, module.batch()).graph
    readers = {graph.atoms[mixer.atom].nodes[0] for mixer in graph.row_mixers if mixer.node == "mean"}
    assert readers == {"mul", "add"}
