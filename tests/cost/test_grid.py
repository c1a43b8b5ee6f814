"""What model and batch parallelism move on a grid of processes, against the published formulas and results."""

from functools import cache
from itertools import product

import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from plait.cost.grid import (
    Choice,
    Grid,
    Wire,
    best_dense,
    best_per_layer,
    best_uniform,
    charged,
    grids_of,
    on_one_grid,
    prefers_model,
)
from plait.graph import build_graph
from plait.graph.layers import Layer, layers_of
from plait.jobs import load_job

WIRE = Wire(2e-6, 4 / 6e9)  # 2 us, 6 GB/s, float32
BATCH = 2048


@cache
def layers(name: str) -> tuple[Layer, ...]:
    job = load_job(name)
    with torch.device("meta"):
        model = job.model()
    batch = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), next(iter(job.batches(4, 0))))
    return layers_of(build_graph(model, batch, loss=job.loss, name=job.name))


def test_the_layers_of_alexnet_are_those_of_the_published_network():
    found = layers("alexnet-2012")
    assert [layer.kind for layer in found] == ["convolution"] * 5 + ["dense"] * 3
    assert [layer.outputs for layer in found] == [290400, 186624, 64896, 64896, 43264, 4096, 4096, 1000]
    assert [layer.inputs for layer in found[1:]] == [69984, 43264, 64896, 64896, 9216, 4096, 4096]
    assert [layer.needs_input_gradient for layer in found] == [False] + [True] * 7
    assert sum(layer.weights for layer in found) == 62_378_344


@pytest.mark.parametrize(
    ("processes", "grid", "dense", "less"),
    [
        (8, "1x8", "4x2", 2.0),
        (32, "1x32", "8x4", 3.2),
        (128, "2x64", "16x8", 5.0),
        (512, "4x128", "32x16", 7.4),
        (2048, "8x256", "64x32", 9.9),
    ],
)
def test_alexnets_grids_and_how_much_less_they_move(processes, grid, dense, less):
    net = layers("alexnet-2012")
    assert str(best_uniform(net, processes, BATCH, WIRE).grids[0]) == grid
    found = best_dense(net, processes, BATCH, WIRE)
    assert [str(one) for one in dict.fromkeys(found.grids)] == [f"1x{processes}", dense]
    batch_only = on_one_grid(net, Grid(1, processes), BATCH)
    assert round(batch_only.seconds(WIRE) / found.seconds(WIRE), 1) == less


def test_every_layer_with_weights_is_found_in_a_language_model_with_tied_ones_counted_once():
    found = layers("gpt2-tiny?layers=2&width=32&heads=2&sequence=16&vocabulary=64")
    assert {layer.kind for layer in found} == {"embedding", "other", "dense"}
    attention = next(layer for layer in found if layer.name == "blocks.0.attention.query_key_value")
    assert (attention.weights, attention.inputs, attention.outputs) == (32 * 96 + 96, 16 * 32, 16 * 96)
    job = load_job("gpt2-tiny?layers=2&width=32&heads=2&sequence=16&vocabulary=64")
    assert sum(layer.weights for layer in found) == sum(p.numel() for p in job.model().parameters())


@st.composite
def chains(draw: st.DrawFn) -> list[Layer]:
    sizes = draw(st.lists(st.tuples(*[st.integers(1, 10_000)] * 3), min_size=1, max_size=4))
    return [Layer(f"l{n}", "dense", w, i, o, n > 0) for n, (w, i, o) in enumerate(sizes)]


@given(chains(), st.sampled_from([2, 4, 8]))
def test_pure_batch_moves_weights_alone_and_pure_model_activations_alone(net, processes):
    part = (processes - 1) / processes
    batch, model = (on_one_grid(net, grid, 64).traffic for grid in (Grid(1, processes), Grid(processes, 1)))
    assert batch.words == approx(2 * part * sum(layer.weights for layer in net))
    assert model.words == approx(64 * part * (sum(x.outputs for x in net) + 2 * sum(x.inputs for x in net[1:])))


@given(chains(), st.sampled_from([2, 4, 6, 8]))
def test_the_grids_per_layer_are_the_best_of_all_there_are(net, processes):
    grids = grids_of(processes, 64)
    every = [charged(net, Choice(choice, on_one_grid(net, grids[0], 64).traffic), 64) for choice in _all(grids, net)]
    found = best_per_layer(net, processes, 64, WIRE)
    assert found.seconds(WIRE) == approx(min(traffic.seconds(WIRE) for traffic in every))
    assert charged(net, found, 64).seconds(WIRE) == approx(found.seconds(WIRE))
    assert found.seconds(WIRE) <= best_uniform(net, processes, 64, WIRE).seconds(WIRE) * (1 + 1e-12)


def _all(grids: list[Grid], net: list[Layer]) -> product:
    return product(grids, repeat=len(net))


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.sampled_from([2, 8, 64]))
def test_what_a_layer_by_itself_prefers_moves_fewer_words(weights, numbers, processes):
    """Where as much goes in as comes out, as the rule has it."""
    layer = Layer("l", "dense", weights, numbers, numbers, True)
    batch, model = (on_one_grid([layer], grid, 64).traffic.words for grid in (Grid(1, processes), Grid(processes, 1)))
    assert prefers_model(layer, 64) == (model < batch)


def test_no_process_is_without_a_row():
    assert grids_of(8, batch=2) == [Grid(4, 2), Grid(8, 1)]
