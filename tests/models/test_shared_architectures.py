"""Every architecture of the matrix on tensor groups: nothing about sharing layers is written for one model."""

import random

import pytest
from architecture import Architecture
from architectures import ARCHITECTURES
from matrix import captured, limit
from shared_runner import run_alone, run_shared
from stage_runner import assert_same

from plait.graph import Model
from plait.graph.sharding.choose import choose_split


def random_split(model: Model, chosen: random.Random) -> dict[str, int]:
    return {
        parameter.name: chosen.randrange(len(parameter.shape))
        for parameter in model.graph.parameters
        if parameter.shape and parameter.dtype.startswith("float") and chosen.random() < 0.6
    }


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_a_group_gives_one_devices_numbers(architecture: Architecture) -> None:
    architecture = architecture.without_layerdrop() if architecture.draws else architecture
    tolerance = 1e-9 if limit(architecture) < 1e-8 else 1e-6
    case = captured(architecture)
    model, batch = case.model, case.batches[0]
    alone = run_alone(model, batch)
    for degree, split in (
        (2, choose_split(model, 0, len(model.atom_nodes), 2, latency=0.0, seconds_per_byte=1e-14, rows=4)),
        (2, random_split(model, random.Random(architecture.name))),
        (3, random_split(model, random.Random(architecture.name + "!"))),
    ):
        for device in run_shared(model, batch, split, degree):
            assert_same(device.outcome, alone, tolerance=tolerance)
