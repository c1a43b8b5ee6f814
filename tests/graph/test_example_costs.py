"""Every example can be costed, on the device at hand and on paper, and is left as it was."""

import copy
import dataclasses

import pytest
import torch
from graph_models import EXAMPLES, RANDOM_EXAMPLES, Example, captured
from torch import Tensor

from plait.cluster import PRESETS
from plait.cost import OptimizerCost, analytic_costs, measure_costs
from plait.errors import PlaitError

ALL = EXAMPLES + RANDOM_EXAMPLES


@pytest.mark.parametrize("example", ALL, ids=lambda example: example.__name__)
def test_measuring_gives_every_atom_a_cost_and_changes_nothing(example):
    module, batch, model = captured(example)
    state, given = copy.deepcopy(module.state_dict()), copy.deepcopy(batch)
    costs = measure_costs(model, batch, kind="cpu", rows=(2, 4), optimizer=OptimizerCost(2, 0, 0), repeats=1)
    assert len(costs.atoms["cpu"]) == len(model.graph.atoms)
    assert all(value >= 0 for atom in costs.atoms["cpu"] for value in dataclasses.astuple(atom))
    assert costs.seconds("cpu", "forward", 0, len(model.graph.atoms), 4) > 0
    assert costs.seconds("cpu", "backward", 0, len(model.graph.atoms), 4) > 0
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert all(torch.equal(tensor, given[name]) for name, tensor in batch.items())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("example", ALL, ids=lambda example: example.__name__)
def test_computing_gives_every_atom_a_cost(example):
    _, batch, model = captured(example)
    costs = analytic_costs(model, batch, kinds=[PRESETS["v100"]], state_bytes_per_byte=2)
    assert all(value >= 0 for atom in costs.atoms["v100"] for value in dataclasses.astuple(atom))
    assert costs.seconds("v100", "forward", 0, len(model.graph.atoms), 4) > 0
    assert costs.seconds("v100", "backward", 0, len(model.graph.atoms), 4) > 0


class ReadsANumber(Example):
    """What is computed next depends on a value, which nobody knows on paper."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        count = t.argmax().item()
        torch._check(count >= 0)
        return (hidden.new_ones(count + 1).sum() * self.second(hidden) - t).square().mean()


def test_what_cannot_be_computed_without_running_is_named():
    _, batch, model = captured(ReadsANumber)
    with pytest.raises(PlaitError, match=r"the cost of item.* cannot be computed without running it"):
        analytic_costs(model, batch, kinds=[PRESETS["v100"]], state_bytes_per_byte=2)
    measured = measure_costs(model, batch, kind="cpu", rows=(2, 4), optimizer=OptimizerCost(2, 0, 0), repeats=1)
    assert measured.seconds("cpu", "forward", 0, len(model.graph.atoms), 4) > 0
