"""Every architecture of the matrix is cut as its authors wrote it, and trains with the numbers of the uncut model."""

import pytest
from architecture import Architecture
from architectures import ARCHITECTURES
from matrix import limit, random_cuts, worst_difference

# PyTorch warns that its own recurrent layers keep a list of their weights.
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes")

NUM_CUTS = 3
MATRIX = [
    pytest.param(architecture, id=architecture.name, marks=() if architecture.fast else pytest.mark.slow)
    for architecture in ARCHITECTURES
]


@pytest.mark.parametrize("architecture", MATRIX)
def test_any_cut_trains_like_the_model_as_given(architecture: Architecture) -> None:
    for boundaries in random_cuts(architecture, NUM_CUTS):
        assert worst_difference(architecture, boundaries) <= limit(architecture), boundaries


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [pytest.param(a, id=a.name) for a in ARCHITECTURES if a.draws])
def test_a_model_that_may_drop_layers_but_does_not_trains_like_the_model_as_given(architecture: Architecture) -> None:
    architecture = architecture.without_layerdrop()
    for boundaries in random_cuts(architecture, NUM_CUTS):
        assert worst_difference(architecture, boundaries) <= limit(architecture), boundaries


def test_the_matrix_is_broad() -> None:
    assert len({a.name for a in ARCHITECTURES}) == len(ARCHITECTURES) >= 50
    fast = [a for a in ARCHITECTURES if a.fast]
    assert len({a.family for a in fast}) >= 7
