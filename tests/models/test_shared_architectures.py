"""Every architecture of the matrix on tensor groups: nothing about sharing layers is written for one model."""

import random

import pytest
from architecture import Architecture
from architectures import ARCHITECTURES
from matrix import captured, limit
from shared_cases import random_split
from shared_runner import run_alone, run_shared
from stage_runner import assert_same

from plait.graph.sharding.choose import choose_split


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
