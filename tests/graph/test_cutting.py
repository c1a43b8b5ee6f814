"""However a model is cut, it computes what its author wrote."""

import random

import pytest
import torch
from graph_models import EXAMPLES, RANDOM_EXAMPLES, AutocastRegion, captured
from stage_runner import assert_same, run_eagerly, run_staged

from plait.graph import Model, build_graph

NUM_RANDOM_CUTS = 4


def cuts_of(model: Model) -> list[list[int]]:
    """Every atom a stage of its own, no cut at all, and random cuts into 2 to 6 stages."""
    num_atoms = len(model.graph.atoms)
    chosen = random.Random(0)
    stages = [min(chosen.randint(2, 6), num_atoms) for _ in range(NUM_RANDOM_CUTS)]
    return [
        list(range(1, num_atoms)),
        [],
        *(sorted(chosen.sample(range(1, num_atoms), count - 1)) for count in stages),
    ]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_every_cut_gives_the_loss_gradients_and_buffers_of_the_uncut_model(example):
    module, batch, model = captured(example)
    expected = run_eagerly(module, batch)
    for boundaries in cuts_of(model):
        found = run_staged(model, batch, boundaries)
        assert_same(found, expected)
        kept = dict(module.named_buffers())
        for name in expected.buffers.keys() - found.buffers.keys():
            assert torch.equal(expected.buffers[name], kept[name]), f"{name} is written, but not by any stage"


@pytest.mark.parametrize("example", RANDOM_EXAMPLES, ids=lambda example: example.__name__)
def test_every_cut_draws_the_random_numbers_of_the_uncut_capture(example):
    _, batch, model = captured(example)
    expected = run_staged(model, batch)
    for boundaries in cuts_of(model):
        assert_same(run_staged(model, batch, boundaries), expected)


def test_autocast_computes_in_the_precision_its_region_asks_for():
    module = AutocastRegion()
    batch = {name: tensor.float() for name, tensor in module.batch().items()}
    expected = run_eagerly(module, batch)
    model = build_graph(module, batch)
    for boundaries in cuts_of(model):
        assert_same(run_staged(model, batch, boundaries), expected, tolerance=0)
