"""Python branches on random numbers: one graph that takes every path the model would."""

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from plait.graph import CaptureError, Model, build_graph
from plait.graph.cut import cut
from plait.graph.randomness import Randomness, seeded
from plait.graph.stage import build_stage

WIDTH, ROWS = 4, 3


class Layered(nn.Module):
    """Layers of which each step leaves some out."""

    def __init__(self, num_layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.step(layer, x)
        return self.norm(x).square().mean()

    def step(self, layer: nn.Module, x: Tensor) -> Tensor:
        if torch.rand([]) < 0.5:
            return x
        return torch.tanh(layer(x))


class Kept(Layered):
    """The other way round: a yes runs the layer."""

    def step(self, layer: nn.Module, x: Tensor) -> Tensor:
        return torch.tanh(layer(x)) if torch.rand([]) > 0.5 else x


class TwoWays(Layered):
    """Both ways compute."""

    def step(self, layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x).relu() + x if torch.rand([]) < 0.5 else x.sigmoid() * 0.5


class TwoResults(Layered):
    """A branch on which two later values depend."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.mean(-1)
        for layer in self.layers:
            if torch.rand([]) < 0.5:
                continue
            x = layer(x)
            total = total + x.sum(-1)
        return self.norm(x).square().mean() + total.mean()


class Dropping(Layered):
    """Dropout inside what may be skipped."""

    def step(self, layer: nn.Module, x: Tensor) -> Tensor:
        return x if torch.rand([]) < 0.5 else nn.functional.dropout(layer(x), 0.5)


MODELS: list[Callable[[], Layered]] = [Layered, Kept, TwoWays, TwoResults]


def captured(make: Callable[[], nn.Module]) -> tuple[nn.Module, Model, Tensor]:
    torch.manual_seed(0)
    module, x = make().double(), torch.randn(ROWS, WIDTH, dtype=torch.float64)
    return module, build_graph(module, (x,)), x


def run(model: Model, x: Tensor, seed: int, boundaries: Sequence[int] = ()) -> Tensor:
    values: dict[str, Tensor] = {}
    for stage_cut in cut(model.graph, boundaries):
        code = build_stage(model, stage_cut)
        code.randomness.seed = seed
        received = [values[value.name] for value in stage_cut.receives]
        results = code.module(ROWS, *[x for _ in code.inputs], *received)
        values |= {value.name: result for value, result in zip(stage_cut.sends, results, strict=False)}
    return results[-1]


def draws(model: Model, seed: int) -> list[float]:
    """What the model's questions are answered with under a seed, in their order."""
    found = []
    for node in model.captured.module.graph.nodes:
        if node.target is seeded and node.args[2] is torch.ops.aten.rand.default:
            torch.manual_seed(Randomness(seed=seed).stream(node.args[1]))
            found.append(torch.rand([]).item())
    return found


def eagerly(module: nn.Module, x: Tensor, numbers: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    drawn = iter(numbers)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", lambda *_: torch.tensor(next(drawn)))
        return module(x)


@pytest.mark.parametrize("make", MODELS)
def test_every_path_gives_the_models_own_loss_and_gradients(make, monkeypatch) -> None:
    module, model, x = captured(make)
    seen = set()
    for seed in range(24):
        numbers = draws(model, seed)
        seen.add(tuple(number < 0.5 for number in numbers))
        module.zero_grad()
        loss = run(model, x, seed)
        loss.backward()
        found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        module.zero_grad()
        expected = eagerly(module, x, numbers, monkeypatch)
        expected.backward()
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(found[name], parameter.grad, rtol=1e-9, atol=1e-15)
    assert len(seen) > 8  # of sixteen ways through four layers


@pytest.mark.parametrize("make", [*MODELS, Dropping])
def test_cutting_between_layers_changes_nothing(make) -> None:
    _, model, x = captured(make)
    inner = range(1, len(model.graph.atoms))
    assert len(inner) >= 4
    for seed, boundaries in enumerate(itertools.combinations(inner, 3)):
        torch.testing.assert_close(run(model, x, seed, boundaries), run(model, x, seed), rtol=0, atol=0)


def test_a_layer_that_may_be_skipped_is_one_atom_and_says_why() -> None:
    _, model, _ = captured(Layered)
    skipped = [atom for atom in model.graph.atoms if any("random number chooses" in why for why in atom.binds)]
    assert [atom.module for atom in skipped] == [f"layers.{i}" for i in range(4)] or len(skipped) == 4


class Checked(Layered):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 1e6:
            raise ValueError("too large")
        return super().forward(x)


def test_a_check_of_the_data_is_no_branch() -> None:
    _, model, x = captured(Checked)
    assert torch.isfinite(run(model, x, 0))


class Nested(Layered):
    def step(self, layer: nn.Module, x: Tensor) -> Tensor:
        if torch.rand([]) < 0.5 and torch.rand([]) < 0.5:
            return x
        return layer(x)


def test_branches_inside_branches_are_refused() -> None:
    with pytest.raises(CaptureError, match="random number"):
        captured(Nested)
