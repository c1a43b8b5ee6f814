"""Why nodes may not be parted: every reason is a sound argument, and says the plain cases plainly."""

from itertools import pairwise

import pytest
import torch
from graph_models import (
    ROWS,
    WIDTH,
    ChunkAndSplit,
    FillEmptyTensor,
    KeepSomeRows,
    MaskFromBuffer,
    NoGradRegion,
    ReadBeforeAndAfterWrite,
    ReadsStrides,
    RowsAgainstRows,
    RunningMean,
    RunningMeanInRegion,
    WriteThroughView,
    captured,
)
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.graph import Model, build_graph
from plait.graph.parting import parting
from plait.graph.reasons import Step, neighbours, why_together

BOUND: list[type[nn.Module]] = [
    ChunkAndSplit, FillEmptyTensor, KeepSomeRows, NoGradRegion, ReadBeforeAndAfterWrite, ReadsStrides, RowsAgainstRows,
    RunningMean, RunningMeanInRegion, WriteThroughView,
]  # fmt: skip


class SharedNorm(nn.Module):
    """BatchNorm used twice: both uses write its statistics, so what lies between them stays with them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.inner(self.norm(self.first(x))))).square().mean()


class TwoNormsInTurn(nn.Module):
    """Each is used twice, in turn: one tie reaches into the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.BatchNorm1d(WIDTH, track_running_stats=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(self.other(self.one(x)))).square().mean()


@pytest.fixture(scope="module")
def shared_norm() -> Model:
    return build_graph(SharedNorm(), {"x": torch.randn(ROWS, WIDTH)})


def is_sound(model: Model, step: Step) -> bool:
    if step.binding:
        return {step.earlier, step.later} <= step.binding.nodes
    (output,) = model.captured.module.graph.find_nodes(op="output")
    return step.later in step.earlier.users or step.later in output.all_input_nodes


@pytest.mark.parametrize("example", BOUND)
def test_every_reason_leads_there_and_back_by_sound_steps(example: type[nn.Module]) -> None:
    _, _, model = captured(example)
    for atom, nodes in enumerate(model.atom_nodes):
        reasons = neighbours(model, atom)
        assert [(reason.first, reason.second) for reason in reasons] == list(pairwise(nodes))
        for reason in reasons:
            walk = [*reason.there, *reason.back]
            assert all(is_sound(model, step) for step in walk)
            assert [step.later for step in walk] == [*(step.earlier for step in walk[1:]), reason.first]
            assert any(step.binding for step in walk), "what merely flows on may be cut"
            assert " rule)" in str(reason)


@pytest.mark.parametrize("example", [ChunkAndSplit, RunningMean, KeepSomeRows])
def test_nodes_have_a_reason_to_stay_together_exactly_within_an_atom(example: type[nn.Module]) -> None:
    _, _, model = captured(example)
    for one, home in model.atom_of.items():
        for other, elsewhere in model.atom_of.items():
            assert (why_together(model, one, other) is not None) == (home == elsewhere and one is not other)


@pytest.mark.parametrize(
    ("example", "rule"),
    [
        (ChunkAndSplit, "tuple"),
        (WriteThroughView, "mutation"),
        (ReadsStrides, "strides"),
        (RunningMean, "buffer"),
        (KeepSomeRows, "data-dependent"),
        (RowsAgainstRows, "proportional"),
    ],
)
def test_every_rule_is_named_where_it_binds(example: type[nn.Module], rule: str) -> None:
    _, _, model = captured(example)
    reasons = [str(reason) for atom in range(len(model.atom_nodes)) for reason in neighbours(model, atom)]
    assert any(f"({rule} rule)" in reason for reason in reasons)


def test_a_rule_that_binds_both_is_the_whole_reason() -> None:
    _, _, model = captured(ChunkAndSplit)
    found = parting(model, "getitem", "getitem_1")
    assert str(found.reason) == "chunk makes a tuple (tuple rule)" and not found.cuts


def test_what_lies_between_two_bound_nodes_says_so(shared_norm: Model) -> None:
    tie = "buffer norm.running_mean is written (buffer rule)"
    why = f"between batch_norm and batch_norm_1, which may not be parted: {tie}"
    assert str(parting(shared_norm, "batch_norm", "inner.0").reason) == f"linear_1 lies {why}"
    assert str(parting(shared_norm, "tanh", "batch_norm_1").reason) == f"tanh lies {why}"
    assert str(parting(shared_norm, "inner.1", "inner.0").reason) == f"both lie {why}"


def test_several_ties_are_told_one_after_another() -> None:
    model = build_graph(TwoNormsInTurn(), {"x": torch.randn(ROWS, WIDTH)})
    assert str(parting(model, "batch_norm", "batch_norm_3").reason) == (
        "batch_norm_3 stays with batch_norm_1: buffer other.running_mean is written (buffer rule); "
        "batch_norm_2 is computed from batch_norm_1; "
        "batch_norm_2 stays with batch_norm: buffer one.running_mean is written (buffer rule)"
    )


def test_modules_apart_are_parted_by_every_cut_in_between(shared_norm: Model) -> None:
    graph = shared_norm.graph
    found = parting(shared_norm, "head", "first")
    assert found.reason is None
    assert found.cuts == tuple(
        range(
            next(i for i, atom in enumerate(graph.atoms) if atom.module == "first") + 1,
            next(i for i, atom in enumerate(graph.atoms) if atom.module == "head") + 1,
        )
    )


def test_modules_that_share_an_atom_name_two_of_its_nodes(shared_norm: Model) -> None:
    assert parting(shared_norm, "norm", "inner").nodes in {("batch_norm", "linear_1"), ("batch_norm_1", "tanh")}


def test_names_that_overlap_or_mean_nothing_are_refused(shared_norm: Model) -> None:
    with pytest.raises(PlaitError, match="inner and linear_1 overlap"):
        parting(shared_norm, "inner", "linear_1")
    with pytest.raises(PlaitError, match=r'"iner" names no module.*Did you mean inner'):
        parting(shared_norm, "iner", "head")


def test_what_every_stage_computes_for_itself_is_parted_from_nothing() -> None:
    _, _, model = captured(MaskFromBuffer)
    free = next(iter(model.free))
    with pytest.raises(PlaitError, match="belongs to no atom"):
        parting(model, free.name, "second")
