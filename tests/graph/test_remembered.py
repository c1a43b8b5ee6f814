"""Shapes remembered while capturing: the captured graph is the same as without, and nothing stays behind."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from graph_models import (
    AutocastRegion,
    Dropouts,
    Example,
    NoGradRegion,
    PositionsAndMasks,
    SizesFromRows,
    TiedEmbedding,
    WriteThroughView,
)
from torch import Tensor, nn
from torch._ops import OpOverload

from plait.graph.capture import capture
from plait.graph.layouts import layout

WIDTH = 8


class Attentive(Example):
    """Composite operators twice each, with arguments alike and not alike."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.first):
            heads = F.dropout(layer(x), 0.1).view(-1, 2, 2, 2)
            heads = F.scaled_dot_product_attention(heads, heads, heads, is_causal=layer is self.first)
            x = F.layer_norm(x + heads.flatten(1), (WIDTH,)) + F.dropout(x, 0.0)
            x = x @ x.new_ones(WIDTH, WIDTH) + F.rms_norm(x.half().double(), (WIDTH,))
        return (x - t).square().mean()


class LooksAtGradients(Example):
    """What a model can ask about a tensor is answered as ever."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            y = layer(x)
            with torch.no_grad():
                quiet = layer(x)
            assert y.requires_grad and not y.is_leaf and not quiet.requires_grad
            x = y.relu_() + quiet
        return (x - t).square().mean()


def described(module: nn.Module, batch: dict[str, Tensor]) -> list[object]:
    graph = capture(module, batch).module.graph
    return [(n.op, str(n.target), str(n.args), str(n.kwargs), str(layout(n.meta.get("val")))) for n in graph.nodes]


OTHERS = [AutocastRegion, Dropouts, NoGradRegion, PositionsAndMasks, SizesFromRows, TiedEmbedding, WriteThroughView]


@pytest.mark.parametrize("example", [Attentive, LooksAtGradients, *OTHERS], ids=lambda example: example.__name__)
def test_the_captured_graph_is_the_same(example, monkeypatch):
    module = example().double()
    batch = module.batch()
    remembered = described(module, batch)
    monkeypatch.setattr("plait.graph.capture.model.remembered_shapes", nullcontext)
    assert remembered == described(module, batch)


def test_equal_layers_are_taken_apart_once(monkeypatch):
    taken_apart = []
    original = OpOverload.decompose

    def decompose(operator, *args, **kwargs):
        taken_apart.append(operator)
        return original(operator, *args, **kwargs)

    monkeypatch.setattr(OpOverload, "decompose", decompose)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(6)] + [nn.Linear(WIDTH, 1)]
    capture(nn.Sequential(*layers, nn.Flatten(0)), (torch.randn(4, WIDTH),), loss=lambda y, _: y.mean())
    assert taken_apart.count(torch.ops.aten.linear.default) == 3  # the batch needs no gradient, the rest does


def test_afterwards_operators_are_as_before():
    capture(Attentive().double(), Attentive().batch())
    for key in ("AutogradCPU", "AutogradMeta"):
        assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::linear", key)
    assert F.linear(torch.ones(2, 3), torch.ones(1, 3)).tolist() == [[3.0], [3.0]]
