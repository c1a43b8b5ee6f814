"""Models nobody would write, cut anywhere, compute what PyTorch computes without a cut."""

import torch
from graph_strategies import RandomModel, Step, steps
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from stage_runner import Outcome, assert_same, run_eagerly, run_staged

from plait.graph import build_graph

# Split rows add up BatchNorm's statistics in another order, and several BatchNorms over three rows that are nearly
# equal enlarge rounding by up to 1 / sqrt(eps) each: what is promised is 1e-9.
AMPLIFIED = 1e-9


def eager_if_legal(module: RandomModel) -> Outcome:
    """PyTorch itself refuses some in-place operations in the backward."""
    try:
        return run_eagerly(module, module.batch())
    except RuntimeError as error:
        assume("inplace" not in str(error))
        raise


@given(steps(), st.data())
@settings(max_examples=20, deadline=None)
def test_a_random_model_cut_anywhere_equals_the_eager_one(program, data):
    torch.manual_seed(0)
    module = RandomModel(program).double()
    torch.manual_seed(1)
    expected = eager_if_legal(module)
    torch.manual_seed(1)
    batch = module.batch()
    model = build_graph(module, batch)
    num_atoms = len(model.graph.atoms)
    boundaries = data.draw(st.sets(st.integers(1, num_atoms - 1), max_size=5), label="boundaries")
    assert_same(run_staged(model, batch, sorted(boundaries)), expected)


@given(steps())
@settings(max_examples=8, deadline=None)
@example([Step("mean_rows", 0, 0, 0), Step("linear", 1, 0, 0)])
@example(
    [
        Step("no_grad", 0, 0, 0),
        Step("linear", 0, 0, 0),
        Step("linear", 1, 0, 0),
        Step("write_view", 0, 0, 0),
        Step("copy_into_zeros", 2, 0, 0),
    ]
)
def test_a_random_model_with_every_atom_a_stage_equals_the_eager_one(program):
    torch.manual_seed(0)
    module = RandomModel(program).double()
    torch.manual_seed(1)
    expected = eager_if_legal(module)
    torch.manual_seed(1)
    batch = module.batch()
    model = build_graph(module, batch)
    assert_same(run_staged(model, batch, list(range(1, len(model.graph.atoms)))), expected)


@given(steps(), st.data())
@settings(max_examples=12, deadline=None)
def test_a_random_model_without_unsolved_row_mixers_splits_by_rows(program, data):
    torch.manual_seed(0)
    module = RandomModel(program).double()
    torch.manual_seed(1)
    expected = eager_if_legal(module)
    torch.manual_seed(1)
    batch = module.batch()
    model = build_graph(module, batch)
    assume(all(mixer.remedy for mixer in model.graph.row_mixers))
    num_atoms = len(model.graph.atoms)
    boundaries = sorted(data.draw(st.sets(st.integers(1, num_atoms - 1), max_size=2), label="boundaries"))
    ways = st.sampled_from([[(0, 3)], [(0, 1), (1, 3)], [(0, 2), (2, 3)], [(0, 1), (1, 2), (2, 3)]])
    spans = [data.draw(ways, label="rows") for _ in range(len(boundaries) + 1)]
    assert_same(run_staged(model, batch, boundaries, spans=spans), expected, tolerance=AMPLIFIED)
