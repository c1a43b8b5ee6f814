"""Costs on paper: operations and bytes against a device's rates; and what optimisers keep."""

import time

import pytest
import torch
from pytest import approx
from torch import Tensor, nn

from plait.cluster import DeviceKind, local_cluster
from plait.cost import analytic_costs, estimate_costs, optimizer_cost
from plait.graph import build_graph

WIDTH = 64


class Dense(nn.Module):
    """Two square matrices without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).square().mean()


BATCH = {"x": torch.zeros(8, WIDTH)}


def kind(name: str, *, flops: float, bandwidth: float, efficiency: float = 1.0) -> DeviceKind:
    return DeviceKind(name, flops, bandwidth, 2**30, efficiency, "cpu")


def computed(*kinds: DeviceKind):
    return analytic_costs(build_graph(Dense(), BATCH), BATCH, kinds=list(kinds), state_bytes_per_byte=2)


def test_a_matrix_on_a_device_short_of_arithmetic_takes_its_operations():
    costs = computed(kind("slow", flops=1e6, bandwidth=1e18))
    operations = 2 * 16 * WIDTH * WIDTH
    assert costs.seconds("slow", "forward", 0, 1, rows=16) == approx(operations / 1e6)
    # the first layer needs no gradient of the batch, the second needs both
    assert costs.seconds("slow", "backward", 0, 1, rows=16) == approx(operations / 1e6)
    assert costs.seconds("slow", "backward", 1, 2, rows=16) == approx(2 * operations / 1e6)


def test_half_of_a_matrixs_backward_can_be_put_off_and_all_of_it_where_the_batch_needs_no_gradient():
    costs = computed(kind("slow", flops=1e6, bandwidth=1e18))
    first, second = ([costs.seconds("slow", p, n, n + 1, 16) for p in ("input", "weight", "backward")] for n in (0, 1))
    assert first == [0.0, first[2], first[2]]
    assert second == approx([second[2] / 2, second[2] / 2, second[2]])


def test_a_matrix_on_a_device_short_of_bandwidth_takes_its_bytes():
    costs = computed(kind("narrow", flops=1e18, bandwidth=1e6))
    moved = 4 * (WIDTH * WIDTH + 2 * 16 * WIDTH)
    assert costs.seconds("narrow", "forward", 0, 1, rows=16) == approx(moved / 1e6)


def test_half_the_efficiency_takes_twice_as_long():
    costs = computed(kind("full", flops=1e9, bandwidth=1e9), kind("half", flops=1e9, bandwidth=1e9, efficiency=0.5))
    assert costs.seconds("half", "forward", 0, 2, 16) == approx(2 * costs.seconds("full", "forward", 0, 2, 16))
    assert costs.source["half"] == "computed at 50% of peak"


def test_what_a_layer_saves_is_its_input_unless_that_is_the_batch():
    costs = computed(kind("any", flops=1e9, bandwidth=1e9))
    assert costs.saved_bytes("any", 0, 1, rows=16) == 0
    assert costs.saved_bytes("any", 1, 2, rows=16) == 4 * 16 * WIDTH


@pytest.mark.parametrize(
    ("factory", "state"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: torch.optim.AdamW(p, lr=0.1), 2),
    ],
    ids=["sgd", "momentum", "adamw"],
)
def test_an_optimiser_keeps_so_many_bytes_per_byte_of_parameters(factory, state):
    cost = optimizer_cost(factory)
    assert cost.state_bytes_per_byte == state
    assert cost.seconds_per_byte > 0


class Slow(torch.optim.SGD):
    """A step takes a millisecond per parameter."""

    def step(self, closure=None):
        time.sleep(1e-3 * sum(len(group["params"]) for group in self.param_groups))


def test_an_optimiser_takes_its_time_per_tensor():
    cost = optimizer_cost(lambda p: Slow(p, lr=0.1))
    assert 0.9e-3 < cost.seconds_per_tensor < 3e-3
    assert cost.seconds(0, 20) > 20 * 0.9e-3


def test_costs_found_again_are_those_of_the_optimiser_in_use(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, cluster = build_graph(Dense(), BATCH), local_cluster(1)
    plain = estimate_costs(model, BATCH, cluster, lambda p: torch.optim.SGD(p, lr=0.1), largest_rows=4)
    again = estimate_costs(model, BATCH, cluster, lambda p: torch.optim.AdamW(p), largest_rows=4)
    assert again.atoms == plain.atoms  # measured once
    name = cluster.devices[0].kind.name
    assert (plain.optimizer[name].state_bytes_per_byte, again.optimizer[name].state_bytes_per_byte) == (0, 2)
