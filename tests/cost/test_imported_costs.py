"""Costs from another tool's profile: its own numbers on the first kind of device, scaled to the others."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest import approx

from plait.cluster import PRESETS, DeviceKind
from plait.cost import imported_costs
from plait.graph.profiles import Profile, ProfileEdge, ProfileNode, Way, load_profile, profile_graph

FAST = DeviceKind("fast", 4e12, 1e12, 2**30, 0.5, "cuda")
SLOW = DeviceKind("slow", 2e12, 1e12, 2**30, 0.25, "cuda")

PROFILE = Profile(
    "small",
    nodes=(
        ProfileNode("a", "LSTM", (Way(1, False, 1e-3, 2e-3, 400, 64.0), Way(2, False, 5e-4, 1e-3, 200, 32.0))),
        ProfileNode("b", "__getitem__(0)", (Way(1, False, 0.0, 1e-3, 0, 0.0),)),
        ProfileNode("c", "Linear", (Way(1, False, 4e-3, 8e-3, 800, 16.0),)),
    ),
    edges=(ProfileEdge("a", "b", 64), ProfileEdge("b", "c", 64)),
    rows=4,
)


def test_an_atom_takes_the_sum_of_its_nodes_for_every_row() -> None:
    costs = imported_costs(PROFILE, profile_graph(PROFILE), kinds=[FAST])
    assert len(costs.atoms["fast"]) == 2
    assert costs.seconds("fast", "forward", 0, 1, 10) == approx(10e-3)
    assert costs.seconds("fast", "backward", 0, 1, 10) == approx(30e-3)
    assert costs.seconds("fast", "forward", 0, 2, 10) == approx(50e-3)
    assert costs.saved_bytes("fast", 0, 2, 10) == 800


def test_half_of_a_backward_can_be_put_off_where_there_are_weights() -> None:
    costs = imported_costs(PROFILE, profile_graph(PROFILE), kinds=[FAST])
    assert costs.seconds("fast", "weight", 0, 1, 10) == approx(10e-3)  # the LSTM's, not the indexing's
    assert costs.seconds("fast", "input", 0, 2, 10) == approx((2 + 1 + 8) * 1e-2 - (1 + 4) * 1e-2)


def test_another_kind_takes_longer_by_what_it_sustains() -> None:
    costs = imported_costs(PROFILE, profile_graph(PROFILE), kinds=[FAST, SLOW])
    assert costs.seconds("slow", "forward", 0, 2, 10) == approx(4 * costs.seconds("fast", "forward", 0, 2, 10))
    assert costs.saved_bytes("slow", 0, 2, 10) == costs.saved_bytes("fast", 0, 2, 10)
    assert "small" in costs.source["fast"] and costs.source["slow"] == "4 times those of fast"


def test_the_first_kind_is_the_one_measured() -> None:
    costs = imported_costs(PROFILE, profile_graph(PROFILE), kinds=[SLOW, FAST])
    assert costs.seconds("slow", "forward", 0, 1, 1) == approx(1e-3)
    assert costs.seconds("fast", "forward", 0, 1, 1) == approx(0.25e-3)


def test_an_optimiser_of_two_states_is_assumed() -> None:
    costs = imported_costs(PROFILE, profile_graph(PROFILE), kinds=[FAST])
    assert costs.optimizer["fast"].state_bytes_per_byte == 2
    assert costs.optimizer["fast"].seconds(1000, 1) == approx(7 * 1000 / (1e12 * 0.5))


@pytest.mark.parametrize("name", ["alexnet.txt", "vgg16.txt", "resnet50.txt", "gnmt.txt"])
def test_a_public_profile_adds_up_to_what_its_file_says(public_profile: Callable[[str], Path], name: str) -> None:
    text = public_profile(name).read_text()
    computing = [line for line in text.splitlines() if not re.search(r" -- Input\d* -- ", line)]

    def total(field: str) -> float:
        return sum(float(number) for line in computing for number in re.findall(rf"{field}=([\d.]+)", line))

    profile = load_profile(public_profile(name), rows=32)
    graph = profile_graph(profile)
    costs = imported_costs(profile, graph, kinds=[PRESETS["v100"]])
    everything = ("v100", "forward", 0, len(graph.atoms), 32)
    assert costs.seconds(*everything) * 1e3 == approx(total("forward_compute_time"))
    assert costs.seconds("v100", "backward", 0, len(graph.atoms), 32) * 1e3 == approx(total("backward_compute_time"))
    assert sum(p.num_bytes for p in graph.parameters) == approx(total("parameter_size"))
