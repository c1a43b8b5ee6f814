"""The memory of a model's atoms: what is measured here and what is computed for elsewhere are the same."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.cluster import local_cluster
from plait.cost import Costs, analytic_costs, estimate_costs, optimizer_cost
from plait.graph import Model, build_graph
from plait.program import StageMemory

WIDTH, HEADS, LENGTH, TOKENS = 32, 2, 24, 50
BATCH = (torch.zeros(8, LENGTH, dtype=torch.long), torch.zeros(8, LENGTH, dtype=torch.long))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inwards(x).view(-1, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return x + self.outwards(mixed.transpose(1, 2).flatten(2))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(Attention(), nn.LayerNorm(WIDTH), Attention())

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        scores = F.linear(self.layers(self.embedding(ids)), self.embedding.weight)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


@cache
def both() -> tuple[Model, Costs, Costs]:
    """A small transformer, measured and computed."""
    model, cluster = build_graph(Reader(), BATCH), local_cluster(1)
    measured = estimate_costs(model, BATCH, cluster, torch.optim.AdamW, largest_rows=8, use_cache=False)
    computed = analytic_costs(model, BATCH, kinds=[cluster.devices[0].kind], state_bytes_per_byte=2)
    return model, measured, computed


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_computed_and_measured_memory_agree(rows: int) -> None:
    model, *costs = both()
    here, elsewhere = (StageMemory(model.graph, one, "cpu") for one in costs)
    end = len(model.graph.atoms)
    for start, stop in [(0, end), (0, end // 2), (end // 3, end)]:
        a, b = here.of(start, stop, rows), elsewhere.of(start, stop, rows)
        assert (b.kept, b.forward, b.backward) == pytest.approx((a.kept, a.forward, a.backward), rel=0.03)


def test_costs_with_their_memory_come_back_from_a_file() -> None:
    _, measured, _ = both()
    assert Costs.from_dict(measured.to_dict()) == measured


def test_what_an_update_takes_besides_its_state_is_found_for_any_optimiser() -> None:
    assert optimizer_cost(torch.optim.AdamW).step_bytes_per_byte == pytest.approx(2.0, abs=0.01)  # a root, a quotient
    assert optimizer_cost(lambda p: torch.optim.SGD(p, lr=0.1)).step_bytes_per_byte == 0.0
    decayed = optimizer_cost(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1))
    assert decayed.step_bytes_per_byte == pytest.approx(1.0, abs=0.01)
