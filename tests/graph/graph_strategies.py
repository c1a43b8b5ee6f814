"""Random models: every value may be used by any later operation, plainly, through views or in place."""

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

WIDTH = 4
ROWS = 3


class Step(NamedTuple):
    """One operation on earlier values, by their numbers."""

    op: str
    a: int
    b: int
    layer: int


OPERATIONS = (
    "linear", "linear", "relu", "tanh", "softmax", "norm", "add", "mul", "cat", "chunk", "buffer", "transpose",
    "relu_", "add_", "mul_", "write_view", "write_all", "copy_into_zeros", "view", "detach", "no_grad", "mean_rows",
)  # fmt: skip


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    chosen = []
    for number in range(draw(st.integers(2, 9))):
        value = st.integers(0, number)
        # Mostly the newest value, so that the graph is deep as well as wide.
        a = draw(st.just(number) | value)
        chosen.append(Step(draw(st.sampled_from(OPERATIONS)), a, draw(value), draw(st.integers(0, 2))))
    return chosen


def copied(tensor: Tensor) -> Tensor:
    """Not `contiguous`, which copies several rows but not a single one: even eagerly, a later write into its result
    would be seen in other places on a batch of one row."""
    return tensor.clone(memory_format=torch.contiguous_format)


class RandomModel(nn.Module):
    """Three layers that any step may use: one used twice is tied."""

    def __init__(self, program: list[Step]) -> None:
        super().__init__()
        self.program = program
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))

    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.randn(ROWS, WIDTH).double()}

    def forward(self, x: Tensor) -> Tensor:
        values = [self.layers[0](x)]
        for step in self.program:
            values.append(self.apply_step(step, values[step.a], values[step.b]))
        return sum((value.square().mean() for value in values[-3:]), start=self.layers[1](x).mean())

    def apply_step(self, step: Step, a: Tensor, b: Tensor) -> Tensor:
        layer = self.layers[step.layer]
        match step.op:
            case "linear":
                return layer(a)
            case "relu" | "tanh" | "relu_":
                return getattr(a, step.op)()
            case "softmax":
                return a.softmax(1)
            case "norm":
                return self.norm(copied(a))  # of another layout PyTorch's prediction of the result's layout is wrong
            case "add":
                return a + b
            case "mul":
                return a * b
            case "cat":
                return self.narrow(torch.cat([a, b], dim=1))
            case "chunk":
                left, right = a.chunk(2, dim=1)
                return torch.cat([right, left.sin()], dim=1)
            case "buffer":
                return a * self.scale
            case "transpose":
                return copied(a.t()).t()
            case "add_":
                return a.add_(b)
            case "mul_":
                return a.mul_(0.5)
            case "write_view":
                a[:, step.layer] += 1
                return a
            case "write_all":
                whole = a * 2
                part = whole[:, : step.layer + 1]
                whole.add_(b)
                return part.sum(1, keepdim=True) + whole
            case "copy_into_zeros":
                filled = torch.zeros_like(a)
                filled[:, 1:] = b[:, 1:]
                return filled
            case "view":
                whole = a if a.is_contiguous() else copied(a)
                return whole.view(-1).view(a.size(0), WIDTH)
            case "detach":
                return a.detach() + b
            case "no_grad":
                with torch.no_grad():
                    weights = a.softmax(1)
                return b * weights
            case "mean_rows":
                return a - b.mean(0)
        raise AssertionError(step.op)
