"""Random small models and random plans for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from lanes import random_lanes
from torch import Tensor, nn

from plait.cost import WITHOUT_A_SWITCH
from plait.plan import OVERLAPS

WIDTH = 4
KINDS = ("dense", "tied", "add", "multiply", "join", "norm", "batch_norm", "relu_", "detach", "frozen", "tuple")


@dataclass(frozen=True)
class Operation:
    """`kind` applied to earlier values, numbered from the newest back."""

    kind: str
    first: int
    second: int


class RandomModel(nn.Module):
    """A directed graph of operations on [rows, WIDTH], every value at hand for every later one."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        super().__init__()
        self.operations = operations
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.parts = nn.ModuleList(self._part(operation.kind) for operation in operations)
        self.head = nn.Linear(WIDTH, 3)

    def _part(self, kind: str) -> nn.Module:
        if kind == "dense":
            return nn.Linear(WIDTH, WIDTH)
        if kind == "join":
            return nn.Linear(2 * WIDTH, WIDTH)
        if kind == "norm":
            return nn.LayerNorm(WIDTH)
        if kind == "batch_norm":
            return nn.BatchNorm1d(WIDTH, eps=0.1)
        return nn.Identity()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        values = [x, self.tied(x).sin()]
        for operation, part in zip(self.operations, self.parts, strict=True):
            a, b = (values[-1 - place % len(values)] for place in (operation.first, operation.second))
            values.append(self._result(operation.kind, part, a, b))
        used = values[-1] + values[len(values) // 2]
        return F.cross_entropy(self.head(used), labels)

    def _result(self, kind: str, part: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        if kind in ("dense", "norm", "batch_norm"):
            return part(a).tanh()
        if kind == "tied":
            return self.tied(a).tanh()
        if kind == "frozen":
            return self.frozen(a).sin()
        if kind == "add":
            return a + b
        if kind == "multiply":
            return (a * b).tanh()
        if kind == "join":
            return part(torch.cat([a, b], dim=1)).tanh()
        if kind == "relu_":
            return F.relu_(a * 1.5) + 0.1 * a
        if kind == "detach":
            return a + b.detach()
        left, right = a.chunk(2, dim=1)
        return torch.cat([right.tanh(), left], dim=1)


@st.composite
def models(draw: Any) -> list[Operation]:
    place = st.integers(0, 5)
    return draw(st.lists(st.builds(Operation, st.sampled_from(KINDS), place, place), min_size=2, max_size=9))


@dataclass(frozen=True)
class PlanShape:
    """A plan before its model is known; `cuts` are shares of the model's length, `lanes` an order of one's own."""

    layout: tuple[int, ...]
    placement: tuple[int, ...]
    recompute: frozenset[int]
    lanes: tuple[str, ...]
    sync: str
    overlap: str
    cuts: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]
    micro_batches: int
    rows: int
    short_rows: int
    schedule: str
    bucket_bytes: int
    clip_norm: float | None

    def boundaries(self, num_atoms: int) -> list[int]:
        """Distinct and inside the chain, near where the cuts are."""
        free = list(range(1, num_atoms))
        return sorted(free.pop(int(cut * len(free))) for cut in self.cuts)


@st.composite
def plan_shapes(draw: Any, *, most_stages: int = 3) -> PlanShape:
    layout = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=most_stages).filter(lambda x: sum(x) <= 5)))
    placement = (*range(len(layout)), *draw(st.lists(st.sampled_from(range(len(layout))), max_size=2)))
    micro_batches = draw(st.integers(1, 3))
    stages = st.sets(st.sampled_from(range(len(placement))))
    lanes = random_lanes(placement, micro_batches, split=draw(stages), seed=draw(st.integers(0, 99)))
    in_line = len(placement) == len(layout)
    least = max(2, *layout)  # BatchNorm needs two rows in every micro-batch
    shortest = least if max(layout) > 1 else 2 * micro_batches
    return PlanShape(
        layout=layout,
        placement=placement,
        recompute=frozenset(draw(stages)),
        lanes=() if in_line and draw(st.booleans()) else lanes,
        sync=draw(st.sampled_from(sorted(WITHOUT_A_SWITCH))),
        overlap=draw(st.sampled_from(OVERLAPS)),
        cuts=tuple(draw(st.floats(0, 0.99)) for _ in placement[1:]),
        shares=tuple(tuple(draw(st.sampled_from([1.0, 1.0, 1.2])) for _ in range(n)) for n in layout),
        micro_batches=micro_batches,
        rows=micro_batches * least + draw(st.integers(0, 3)),
        short_rows=draw(st.integers(shortest, micro_batches * least)),
        schedule=draw(st.sampled_from(["1f1b", "gpipe", "zb-h1", "pe"])),
        bucket_bytes=draw(st.sampled_from([64, 2**20])),
        clip_norm=draw(st.sampled_from([None, 0.01])),
    )
