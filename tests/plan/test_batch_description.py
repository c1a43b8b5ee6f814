"""The shape of a batch as data, and an example made from it."""

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from plait.errors import PlaitError
from plait.plan.batches import describe, example

BATCHES = [
    torch.zeros(3, 2),
    torch.zeros(4, dtype=torch.bfloat16),
    (torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)),
    [torch.zeros(2), [torch.zeros(2, 1)]],
    {"x": torch.zeros(2), "options": {"scale": 0.5, "name": "a", "none": None, "flag": True}},
]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
def test_an_example_has_the_described_structure_shapes_and_types(batch):
    made = example(describe(batch))
    leaves, structure = pytree.tree_flatten(batch)
    made_leaves, made_structure = pytree.tree_flatten(made)
    assert made_structure == structure
    for leaf, other in zip(leaves, made_leaves, strict=True):
        if isinstance(leaf, Tensor):
            assert (leaf.shape, leaf.dtype) == (other.shape, other.dtype)
        else:
            assert leaf == other


def test_a_batch_with_something_else_in_it_is_refused_by_its_type():
    with pytest.raises(PlaitError, match="a batch holds a set"):
        describe({"x": {1, 2}})


@pytest.mark.parametrize("damaged", [None, {}, [], "tensor"])
def test_a_damaged_description_is_refused(damaged):
    with pytest.raises(PlaitError, match="damaged"):
        example(damaged)
