"""Weight gradients that come late are those that autograd would have made at once."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.graph import build_graph
from plait.graph.cut import cut
from plait.graph.deferred import run_deferred
from plait.graph.stage import StageCode, build_stage


class Uses(nn.Module):
    """A weight, perhaps a bias, and something that multiplies by them, between layers that have gradients too."""

    def __init__(self, use: Callable[..., Tensor], weight: tuple[int, ...], bias: int | None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()) + 1)
        self.weight = nn.Parameter(torch.randn(weight) / 3)
        self.bias = None if bias is None else nn.Parameter(torch.randn(bias))
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale if x.is_floating_point() else x
        return self.use(x, self.weight, self.bias).tanh().flatten(1).square().sum(1).mean()


ROWS, IMAGES = torch.randn(3, 4), torch.randn(3, 4, 6, 6)
WORDS = torch.tensor([[1, 2], [0, 1], [4, 1]])
CASES: dict[str, tuple[Callable[..., Tensor], Tensor, tuple[int, ...], int | None]] = {
    "linear": (F.linear, ROWS, (5, 4), 5),
    "linear without bias": (F.linear, ROWS, (5, 4), None),
    "linear over positions": (F.linear, torch.randn(3, 2, 4), (5, 4), 5),
    "matmul": (lambda x, w, b: x @ w + b, torch.randn(3, 2, 4), (4, 5), 5),
    "matmul of a view": (lambda x, w, b: x @ w.t(), ROWS, (5, 4), None),
    "a part of a packed weight": (lambda x, w, b: F.linear(x, w[2:6]), ROWS, (9, 4), None),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), ROWS, (4, 5), 5),
    "used twice": (lambda x, w, b: F.linear(F.linear(x, w, b).sin(), w), ROWS, (4, 4), 4),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1), torch.randn(3, 4, 7), (2, 4, 3), 2),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(0, 1)), IMAGES, (2, 4, 3, 3), 2),
    "grouped conv2d": (lambda x, w, b: F.conv2d(x, w, b, dilation=2, groups=2), IMAGES, (6, 2, 3, 3), None),
    "conv2d of single pixels": (F.conv2d, IMAGES, (2, 4, 1, 1), 2),
    "conv2d of single pixels without bias": (F.conv2d, IMAGES, (5, 4, 1, 1), None),
    "conv2d of single pixels, channels last": (
        lambda x, w, b: F.conv2d(x.contiguous(memory_format=torch.channels_last), w, b),
        IMAGES,
        (2, 4, 1, 1),
        2,
    ),
    "conv3d of single voxels": (F.conv3d, torch.randn(3, 4, 2, 3, 2), (2, 4, 1, 1, 1), 2),
    "transposed conv2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        IMAGES,
        (4, 2, 3, 3),
        2,
    ),
    "embedding": (lambda x, w, b: F.embedding(x, w, padding_idx=1), WORDS, (5, 3), None),
}


def stages(use: str, dtype: torch.dtype = torch.float64) -> tuple[StageCode, StageCode, Tensor]:
    function, x, weight, bias = CASES[use]
    torch.manual_seed(0)
    x = x.to(dtype) if x.is_floating_point() else x
    model = build_graph(Uses(function, weight, bias).to(dtype), {"x": x})
    (whole,) = cut(model.graph, [])
    return build_stage(model, whole), build_stage(model, whole, split_backward=True), x


def gradients(code: StageCode) -> dict[str, Tensor | None]:
    """What the parameters' gradients are now; the next ones begin with zeros, as in a bucket."""
    found = {name: p.grad for name, p in code.named_parameters().items()}
    for parameter in code.named_parameters().values():
        parameter.grad = torch.zeros_like(parameter)
    return found


def assert_equal(found: dict[str, Tensor | None], expected: dict[str, Tensor | None]) -> None:
    """Sums in another order differ by the type's rounding of what is summed, not of what is left of it."""
    for name, gradient in expected.items():
        rounding = {} if gradient is None or gradient.dtype != torch.bfloat16 else in_bfloat16(gradient)
        torch.testing.assert_close(found[name], gradient, **rounding)


def in_bfloat16(gradient: Tensor) -> dict[str, float]:
    step = torch.finfo(torch.bfloat16).eps
    return {"rtol": step, "atol": step * gradient.abs().max().item()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("use", CASES)
def test_both_halves_make_the_gradients_of_one_backward(use: str, dtype: torch.dtype) -> None:
    whole, halves, x = stages(use, dtype)
    for _ in range(2):  # the first time there is no gradient to add to, then there is
        whole.module(3, x)[0].backward()
        expected = gradients(whole)
        halves.module(3, x)[0].backward()
        waiting = halves.weight_gradients.take()
        assert waiting, "nothing was put off"
        run_deferred(waiting)
        assert_equal(gradients(halves), expected)


@pytest.mark.parametrize("use", ["linear", "conv2d", "embedding"])
def test_the_first_half_leaves_the_weights_alone(use: str) -> None:
    _, halves, x = stages(use)
    gradients(halves)
    halves.module(3, x)[0].backward()
    assert not gradients(halves)["weight"].any()


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_weight_gets_no_gradient(frozen: str) -> None:
    torch.manual_seed(0)
    module = Uses(F.linear, (5, 4), 5).double()
    getattr(module, frozen).requires_grad_(False)
    model = build_graph(module, {"x": ROWS.double()})
    (whole,) = cut(model.graph, [])
    expected, halves = build_stage(model, whole), build_stage(model, whole, split_backward=True)
    expected.module(3, ROWS.double())[0].backward()
    wanted = {name: p.grad for name, p in expected.named_parameters().items()}
    for parameter in halves.named_parameters().values():
        parameter.grad = None
    halves.module(3, ROWS.double())[0].backward()
    run_deferred(halves.weight_gradients.take())
    found = {name: p.grad for name, p in halves.named_parameters().items()}
    assert found[frozen] is None
    assert_equal(found, wanted)
