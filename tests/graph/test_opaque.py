"""Modules the capture cannot look into stay in one piece; everything around them is cut as ever."""

import random

import pytest
import torch
import torch.nn.functional as F
from stage_runner import assert_same, run_eagerly, run_staged
from torch import Tensor, nn

from plait.graph import CaptureError, Model, build_graph

WIDTH = 4


class Tripled(torch.autograd.Function):
    """Its backward is not the derivative of its forward, so that a lost one is noticed."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


class OwnBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return Tripled.apply(self.linear(x))


class Branching(OwnBackward):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) if x.sum() > 0 else self.linear(-x) * 0.5


class Counting(OwnBackward):
    """Branches, and remembers how often."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.linear(x) if x.sum() > 0 else x


class TwoInTwoOut(OwnBackward):
    def forward(self, pair: dict[str, Tensor], scale: float) -> tuple[Tensor, dict[str, Tensor]]:
        x = pair["x"] if pair["x"].sum() > 0 else -pair["x"]
        return self.linear(x) * scale, {"y": x.sum(-1, keepdim=True) + pair["y"]}


class Layers(nn.Module):
    def __init__(self, layer: type[nn.Module], count: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layer() for _ in range(count))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.norm(x), t)


class Structured(Layers):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x, y = self.first(x), t[:, :1]
        for layer in self.layers:
            x, rest = layer({"x": x, "y": y}, scale=0.5)
            y = rest["y"]
        return F.mse_loss(self.norm(x) * y, t)


def batch(rows: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(rows, WIDTH, dtype=torch.float64), torch.randn(rows, WIDTH, dtype=torch.float64)


def made(kind: type[Layers], layer: type[nn.Module]) -> tuple[Layers, Model]:
    torch.manual_seed(0)
    module = kind(layer).double()
    return module, build_graph(module, batch())


def opaque_atoms(model: Model) -> list[int]:
    return [i for i, atom in enumerate(model.graph.atoms) if any(why.startswith("opaque") for why in atom.binds)]


@pytest.mark.parametrize(
    ("kind", "layer"), [(Layers, OwnBackward), (Layers, Branching), (Layers, Counting), (Structured, TwoInTwoOut)]
)
def test_a_list_of_such_layers_is_cut_between_them_exactly(kind, layer) -> None:
    module, model = made(kind, layer)
    atoms = opaque_atoms(model)
    assert len(atoms) == 3
    assert_same(run_staged(model, batch(), atoms), run_eagerly(module, batch()))


def test_the_reason_is_told() -> None:
    _, model = made(Layers, OwnBackward)
    why = " ".join(model.graph.atoms[opaque_atoms(model)[0]].binds)
    assert "Tripled, an autograd.Function with a backward of its own" in why


def test_rows_may_be_split_where_they_do_not_depend_on_one_another() -> None:
    assert made(Layers, OwnBackward)[1].graph.row_mixers == ()
    mixers = made(Layers, Branching)[1].graph.row_mixers
    assert len(mixers) == 3
    assert "runs in one piece" in mixers[0].why
    assert mixers[0].remedy == ""


def test_looking_at_a_module_leaves_its_buffers_alone() -> None:
    module, _ = made(Layers, Counting)
    assert module.layers[0].calls == 0


class PythonDice(OwnBackward):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if random.random() < 0.5 else x


def test_pythons_dice_fall_as_the_stage_is_seeded() -> None:
    _, model = made(Layers, PythonDice)
    atoms = opaque_atoms(model)
    assert len(atoms) == 3
    assert_same(run_staged(model, batch(), atoms), run_staged(model, batch(), []))


class TopLevelDice(Layers):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return super().forward(x, t) * (2 if random.random() < 0.5 else 1)


class TopLevelFunction(Layers):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return Tripled.apply(super().forward(x, t))


class TopLevelBranch(Layers):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x, t)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (TopLevelDice, "draws from Python's or NumPy's random generator"),
        (TopLevelFunction, "calls Tripled, an autograd.Function"),
        (TopLevelBranch, "branches on a tensor's value"),
    ],
)
def test_at_the_top_of_the_model_it_is_refused_with_the_fix(kind, words) -> None:
    with pytest.raises(CaptureError) as caught:
        build_graph(kind(nn.Identity).double(), batch())
    assert f"module the model ({kind.__name__}) {words}" in str(caught.value)
    assert "a module of its own" in str(caught.value)


class Overwriting(OwnBackward):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mul_(2)) if x.sum() > -1e9 else x


class Irregular(OwnBackward):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x[:1]]) if x.sum() > -1e9 else x


class AnyRows(Layers):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.norm(self.layers[0](self.first(x))).mean() + t.mean()


@pytest.mark.parametrize(
    ("layer", "words"), [(Overwriting, "overwrites its input in place"), (Irregular, "not proportional")]
)
def test_a_module_that_cannot_be_a_black_box_is_refused(layer, words) -> None:
    with pytest.raises(CaptureError, match=words):
        build_graph(AnyRows(layer, 1).double(), batch())
