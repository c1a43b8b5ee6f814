"""Which nodes stay together, in which order the atoms come, and what flows between them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from graph_models import (
    EXAMPLES,
    BatchNormed,
    BatchNormInRegion,
    Chain,
    ChunkAndSplit,
    Example,
    FillEmptyTensor,
    InplaceActivation,
    KeepSomeRows,
    LongSkips,
    MaskFromBuffer,
    NamesItsDevice,
    NoGradRegion,
    PositionsAndMasks,
    ReadsStrides,
    RowsAgainstRows,
    RunningMean,
    TiedEmbedding,
    UnusedAndFrozen,
    WriteThroughView,
    captured,
)
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.graph import Graph, Model, build_graph
from plait.graph.cut import cut
from plait.graph.devices import move_graph
from plait.graph.stage import build_stage


def built(example: type[nn.Module]) -> Model:
    return captured(example)[2]


def rules(graph: Graph) -> set[str]:
    return {why.split(":")[0] for atom in graph.atoms for why in atom.binds}


def atom_with(graph: Graph, node: str) -> int:
    return next(index for index, atom in enumerate(graph.atoms) if node in atom.nodes)


@pytest.mark.parametrize(
    ("example", "rule"),
    [
        (ChunkAndSplit, "tuple"),
        (NoGradRegion, "tuple"),
        (WriteThroughView, "mutation"),
        (FillEmptyTensor, "mutation"),
        (ReadsStrides, "strides"),
        (RunningMean, "buffer"),
        (BatchNormInRegion, "buffer"),
        (KeepSomeRows, "data_dependent"),
        (RowsAgainstRows, "proportional"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_each_rule_binds_what_it_is_for(example, rule):
    assert rule in rules(built(example).graph)


def test_an_in_place_operation_nobody_else_sees_binds_nothing():
    graph = built(InplaceActivation).graph
    assert "mutation" not in rules(graph)
    assert graph.value_by_name.keys() >= {"linear", "relu_"}


class TwoLosses(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        early = F.mse_loss(hidden, t)
        return early * 0.3 + F.mse_loss(self.second(hidden), t)


def test_an_early_loss_waits_for_the_last_stage_because_replicas_have_it_in_parts():
    graph = built(TwoLosses).graph
    assert "mean" in rules(graph)
    assert atom_with(graph, "mse_loss") == atom_with(graph, "mse_loss_1") == len(graph.atoms) - 1


class WritesAfterTheLoss(Example):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        loss = F.mse_loss(self.second(hidden), t)
        self.seen.copy_(hidden.detach().mean(0))
        return loss


def test_the_loss_is_in_the_last_atom_even_if_something_is_written_after_it():
    graph = built(WritesAfterTheLoss).graph
    assert "mse_loss" in graph.atoms[-1].nodes


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_every_prefix_of_the_atoms_is_a_legal_cut(example):
    graph = built(example).graph
    for value in graph.values:
        assert value.producer < min(value.consumers)
        assert tuple(sorted(value.consumers)) == value.consumers
    assert len({node for atom in graph.atoms for node in atom.nodes}) == sum(len(atom.nodes) for atom in graph.atoms)


def test_positions_and_masks_are_computed_where_they_are_used_and_never_sent():
    model = built(PositionsAndMasks)
    free = {node.name for node in model.free}
    assert {"arange", "ge"} <= free
    assert not free & {value.name for value in model.graph.values}


def test_a_value_knows_its_shape_per_row_and_where_the_rows_are():
    values = built(PositionsAndMasks).graph.value_by_name
    assert (values["embedding"].shape, values["embedding"].batch_dim) == ((1, 5, 8), 0)
    assert (values["embedding_1"].shape, values["embedding_1"].batch_dim) == ((5, 8), None)
    assert values["embedding"].num_bytes(rows=3) == 3 * 5 * 8 * 8
    assert values["embedding_1"].num_bytes(rows=3) == 5 * 8 * 8


def test_a_skip_goes_straight_to_every_atom_that_uses_it():
    graph = built(LongSkips).graph
    skips = [value for value in graph.values if max(value.consumers) > value.producer + 1]
    assert len(skips) == 4
    position = skips[0].producer + 1
    alive = [v for v in graph.values if v.producer < position <= max(v.consumers)]
    assert graph.boundary_bytes(position, rows=2) == sum(v.num_bytes(2) for v in alive)


def test_a_tied_parameter_appears_once_with_all_its_readers():
    graph = built(TiedEmbedding).graph
    tied = [p for p in graph.parameters if p.name in ("embedding.weight", "head.weight")]
    assert [(p.name, len(p.atoms), p.trainable) for p in tied] == [("embedding.weight", 2, True)]


def test_a_tied_parameter_is_in_every_stage_that_reads_it():
    graph = built(TiedEmbedding).graph
    stages = cut(graph, [1, len(graph.atoms) - 1])
    holders = [s.index for s in stages if any(p.name == "embedding.weight" for p in s.parameters)]
    assert len(holders) == 2


def test_unused_parameters_are_told_and_frozen_ones_are_not_trained():
    model = built(UnusedAndFrozen)
    assert set(model.unused) == {"unused.weight", "unused.bias"}
    trained = {p.name for p in model.graph.parameters if p.trainable}
    assert trained == {"first.weight", "first.bias", "second.weight", "second.bias"}


class DeadEnd(Example):
    """`second` is run, but the loss does not depend on it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        self.seen.copy_(self.second(hidden).detach().mean(0))
        return F.mse_loss(hidden, t)


def test_a_parameter_without_gradient_is_not_trained():
    trained = {p.name for p in built(DeadEnd).graph.parameters if p.trainable}
    assert trained == {"first.weight", "first.bias"}


def test_a_parameter_whose_gradient_flows_only_through_writes_is_trained():
    trained = {p.name for p in built(FillEmptyTensor).graph.parameters if p.trainable}
    assert trained == {"first.weight", "first.bias", "second.weight", "second.bias"}


def test_a_buffer_read_only_by_free_nodes_belongs_to_the_stages_that_compute_them():
    model = built(MaskFromBuffer)
    (buffer,) = [p for p in model.graph.parameters if p.is_buffer]
    assert (buffer.name, model.unused) == ("mask", ())
    assert [model.graph.atoms[atom].nodes[0] for atom in buffer.atoms] == ["mul", "mul_1"]


def test_buffers_are_no_parameters_to_train():
    buffers = {p.name: p for p in built(BatchNormed).graph.parameters if p.is_buffer}
    assert "norm.running_mean" in buffers
    assert not any(p.trainable for p in buffers.values())


def test_atoms_are_named_after_the_module_they_come_from():
    graph = built(Chain).graph
    assert [atom.name for atom in graph.atoms][:3] == ["first.linear", "tanh", "second.linear_1"]
    assert graph.atoms[0].module == "first"


@pytest.mark.parametrize("boundaries", [[0], [3, 3], [4, 2], [99]], ids=str)
def test_boundaries_must_rise_inside_the_chain(boundaries):
    with pytest.raises(PlaitError, match="must rise strictly between 0 and 5"):
        cut(built(Chain).graph, boundaries)


# Fingerprints


class Wider(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 9)
        self.second = nn.Linear(9, 8)


class Longer(Chain):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return super().forward(self.first(x), t)


class Tied(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.second.weight = self.first.weight


def test_the_fingerprint_is_that_of_the_model_not_of_its_weights_or_batch():
    module = Chain().double()
    small = {name: tensor[:2] for name, tensor in module.batch().items()}
    assert build_graph(module, small).graph.fingerprint == built(Chain).graph.fingerprint


@pytest.mark.parametrize("other", [Wider, Longer, Tied], ids=lambda example: example.__name__)
def test_another_model_has_another_fingerprint(other):
    assert built(other).graph.fingerprint != built(Chain).graph.fingerprint


def test_another_precision_has_another_fingerprint():
    module = Chain()
    batch = {name: tensor.float() for name, tensor in module.batch().items()}
    assert build_graph(module, batch).graph.fingerprint != built(Chain).graph.fingerprint


def test_a_stage_moved_to_another_device_names_it_everywhere():
    model = built(NamesItsDevice)
    (whole,) = cut(model.graph, [])
    module = copy.deepcopy(build_stage(model, whole).module)
    move_graph(module.graph, torch.device("meta"))
    module.recompile()
    x = torch.zeros(2, 8, device="meta", dtype=torch.float64)
    (loss,) = module.to("meta")(2, x, x)
    assert loss.device.type == "meta"
