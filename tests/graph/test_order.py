"""The order of the atoms: legal, never worse than the given one, best where that can be known, always the same."""

import functools
import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from graph_models import captured
from hypothesis import given
from hypothesis import strategies as st
from stage_runner import assert_same, run_eagerly, run_staged
from torch import Tensor, nn

from plait.graph import Graph, build_graph, frontiers
from plait.graph.order import Flow, bytes_alive, cheapest_order
from plait.graph.reorder import cheapest_chain, reordered


@st.composite
def flows(draw: st.DrawFn, most: int) -> tuple[int, list[Flow]]:
    """A graph in a legal order: values with any later consumers, pure precedences and atoms without any flow."""
    num_atoms = draw(st.integers(1, most))
    atoms = st.integers(0, num_atoms - 1)
    found = []
    for _ in range(draw(st.integers(0, 2 * num_atoms))):
        producer, *consumers = sorted(draw(st.sets(atoms, min_size=1, max_size=4)))
        if consumers:
            found.append(Flow(producer, tuple(consumers), draw(st.integers(0, 9))))
    return num_atoms, found


def is_legal(order, found) -> bool:
    place = {atom: index for index, atom in enumerate(order)}
    return all(place[flow.producer] < place[c] for flow in found for c in flow.consumers)


def price(order, found) -> int:
    """Bytes alive over all cuts; on either side of an atom without any flow, the cut is the same."""
    busy = {atom for flow in found for atom in (flow.producer, *flow.consumers)}
    return sum(alive for atom, alive in zip(order, bytes_alive(order, found), strict=True) if atom in busy)


def towers(num_layers: int, *, size: int) -> tuple[int, list[Flow]]:
    """Two chains written layer by layer, from one source to one sink, which get a byte from each."""
    num_atoms = 2 * num_layers + 2
    chains = [[0, *range(side, num_atoms - 1, 2), num_atoms - 1] for side in (1, 2)]
    return num_atoms, [
        Flow(a, (b,), 1 if b == num_atoms - 1 else size) for chain in chains for a, b in itertools.pairwise(chain)
    ]


@given(flows(most=14), st.sampled_from([0, 30, 300, 10_000]))
def test_the_order_is_legal_and_never_worse_than_the_given_one_whatever_the_budget(graph, budget):
    num_atoms, found = graph
    order = cheapest_order(num_atoms, found, budget=budget)
    assert sorted(order) == list(range(num_atoms))
    assert is_legal(order, found)
    assert price(order, found) <= price(range(num_atoms), found)


@given(flows(most=7))
def test_a_small_graph_gets_its_best_order(graph):
    num_atoms, found = graph
    best = min(price(p, found) for p in itertools.permutations(range(num_atoms)) if is_legal(p, found))
    assert price(cheapest_order(num_atoms, found), found) == best


@given(flows(most=12), st.randoms(use_true_random=False), st.sampled_from([60, 10_000]))
def test_the_order_does_not_depend_on_how_its_flows_are_listed(graph, chance, budget):
    num_atoms, found = graph
    shuffled = [Flow(f.producer, tuple(chance.sample(f.consumers, len(f.consumers))), f.num_bytes) for f in found]
    chance.shuffle(shuffled)
    assert price(cheapest_order(num_atoms, shuffled), found) == price(cheapest_order(num_atoms, found), found)
    again = [cheapest_order(num_atoms, found, budget=budget) for _ in range(2)]
    assert again[0] == again[1]


@given(flows(most=10), st.integers(2, 1000))
def test_counting_in_other_units_changes_nothing(graph, factor):
    num_atoms, found = graph
    larger = [Flow(f.producer, f.consumers, factor * f.num_bytes) for f in found]
    assert cheapest_order(num_atoms, larger) == cheapest_order(num_atoms, found)


@given(flows(most=9), flows(most=9))
def test_a_graph_behind_another_is_ordered_as_if_alone(first, second):
    """An atom that all of the first lead to and all of the second follow from joins them."""
    (size, found), (more, others) = first, second
    joined = [
        *found,
        *(Flow(atom, (size,), 0) for atom in range(size)),
        *(Flow(size, (size + 1 + atom,), 0) for atom in range(more)),
        *(Flow(f.producer + size + 1, tuple(c + size + 1 for c in f.consumers), f.num_bytes) for f in others),
    ]
    ends = [*found, *(Flow(atom, (size,), 0) for atom in range(size))]
    starts = [
        *(Flow(0, (1 + atom,), 0) for atom in range(more)),
        *(Flow(f.producer + 1, tuple(c + 1 for c in f.consumers), f.num_bytes) for f in others),
    ]
    alone = [*cheapest_order(size + 1, ends), *(size + a for a in cheapest_order(more + 1, starts)[1:])]
    assert price(cheapest_order(size + 1 + more, joined), joined) == price(alone, joined)


@pytest.mark.parametrize("num_layers", [3, 40, 1000])
def test_towers_written_layer_by_layer_run_one_after_the_other(num_layers):
    num_atoms, found = towers(num_layers, size=10)
    order = cheapest_order(num_atoms, found)
    sides = [atom % 2 for atom in order[1:-1]]
    assert sides == sorted(sides) or sides == sorted(sides, reverse=True)


def test_an_operation_that_shrinks_a_value_runs_as_soon_as_it_can():
    """3 makes a byte for 4 of the fifty that 0 made, but the code first goes on with 1 and 2."""
    found = [Flow(0, (1, 3), 50), Flow(1, (2,), 1), Flow(2, (4,), 1), Flow(3, (4,), 1)]
    order = cheapest_order(5, found)
    assert order.index(3) < order.index(2)


def test_an_order_that_cannot_be_bettered_is_left_as_it_is():
    chain = [Flow(atom, (atom + 1,), 5) for atom in range(9)]
    equal_branches = [Flow(0, (1, 2, 3), 4), *(Flow(atom, (4,), 4) for atom in (1, 2, 3))]
    assert cheapest_order(10, chain) == list(range(10))
    assert cheapest_order(5, equal_branches) == list(range(5))


def test_atoms_without_any_flow_stay_before_the_atom_they_were_given_before():
    found = [Flow(0, (3,), 9), Flow(2, (4,), 9), Flow(3, (6,), 1), Flow(4, (6,), 1)]
    assert cheapest_order(8, found) == [0, 3, 1, 2, 4, 5, 6, 7]


def test_branches_within_branches_without_end_are_ordered_too():
    """Every atom of a long chain also feeds a side atom, and all side atoms feed the last one."""
    length = 400
    last = 2 * length
    found = [Flow(2 * i, (2 * i + 1, *([2 * i + 2] if i + 1 < length else [])), 5) for i in range(length)]
    found += [Flow(2 * i + 1, (last,), 1) for i in range(length)]
    order = cheapest_order(last + 1, found)
    assert is_legal(order, found)
    assert price(order, found) <= price(range(last + 1), found)


def test_the_search_of_a_wide_graph_of_thousands_of_atoms_keeps_to_its_budget(monkeypatch):
    tries = []
    extend = frontiers._extend
    monkeypatch.setattr(frontiers, "_extend", lambda *arguments: (tries.append(1), extend(*arguments)))
    chance = random.Random(0)
    found = [
        Flow(atom, tuple(sorted({chance.randrange(atom + 1, 2001) for _ in range(3)})), chance.randrange(100))
        for atom in range(2000)
    ]
    order = cheapest_order(2001, found, budget=40_000)
    assert is_legal(order, found)
    assert price(order, found) < price(range(2001), found)
    assert len(tries) < 2 * 40_000


# Models


class Towers(nn.Module):
    """Two stacks of layers, of which a forward runs a layer each in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.right = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.randn(6, 8).double(), "y": torch.randn(6, 8).double(), "t": torch.randn(6, 2).double()}

    def forward(self, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        for left, right in zip(self.left, self.right, strict=True):
            x, y = F.dropout(left(x), 0.2).tanh(), right(y).tanh()
        return F.mse_loss(torch.stack([x.mean(1), y.mean(1)], dim=1), t)


class Cell(nn.Module):
    """Branches that first make their input narrower, computed one after the other, as inception models do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.narrow = nn.ModuleList(nn.Conv2d(12, 2, 1) for _ in range(3))
        self.norm = nn.ModuleList(nn.BatchNorm2d(2) for _ in range(3))
        self.wide = nn.ModuleList(nn.Conv2d(2, 4, 3, padding=1) for _ in range(3))

    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.randn(4, 3, 4, 4).double(), "t": torch.randn(4, 12).double()}

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = self.stem(x).relu()
        branches = zip(self.narrow, self.norm, self.wide, strict=True)
        joined = torch.cat([wide(norm(narrow(x)).relu()) for narrow, norm, wide in branches], dim=1)
        return F.mse_loss(joined.mean((2, 3)), t)


class Gated(nn.Module):
    """A U whose skips are first weighed by a gate, all of them computed on the way down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.gate = nn.ModuleList(nn.Linear(8, 1) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.randn(6, 8).double(), "t": torch.randn(6, 8).double()}

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        skips = []
        for down, gate in zip(self.down, self.gate, strict=True):
            x = down(x).tanh()
            skips.append(x * gate(x).sigmoid().expand(-1, 8).exp())
        for up in self.up:
            x = up(x).tanh() + skips.pop()
        return F.mse_loss(x, t)


MODELS = (Towers, Cell, Gated)


@functools.cache
def as_written(model: type[nn.Module]) -> Graph:
    module = model().double()
    return build_graph(module, module.batch(), search_order=False).graph


def total(graph: Graph) -> int:
    return sum(graph.boundary_bytes(position, 1) for position in range(len(graph.atoms)))


@pytest.mark.parametrize("model", [Towers, Cell], ids=lambda model: model.__name__)
def test_the_chain_of_a_model_with_branches_holds_less_than_the_code_as_written(model):
    assert total(captured(model)[2].graph) < total(as_written(model))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_searched_chain_is_the_same_graph_with_the_loss_last(model):
    searched, written = captured(model)[2].graph, as_written(model)
    assert searched.atoms[-1] == written.atoms[-1]
    assert set(searched.atoms) == set(written.atoms)
    assert {v.name: v.row_bytes for v in searched.values} == {v.name: v.row_bytes for v in written.values}
    readers = [{p.name: {g.atoms[a].name for a in p.atoms} for p in g.parameters} for g in (searched, written)]
    assert readers[0] == readers[1]
    assert total(searched) <= total(written)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_capturing_again_gives_the_same_chain(model):
    module = model().double()
    assert build_graph(module, module.batch()).graph.fingerprint == captured(model)[2].graph.fingerprint


def test_every_cut_of_a_reordered_chain_computes_what_the_model_does():
    module, batch, model = captured(Cell)
    expected = run_eagerly(module, batch)
    for position in range(1, len(model.graph.atoms)):
        assert_same(run_staged(model, batch, [position]), expected)


def test_dropout_draws_the_same_numbers_in_either_order():
    torch.manual_seed(1)
    module = Towers().double()
    batch = module.batch()
    written, searched = (build_graph(module, batch, search_order=search) for search in (False, True))
    assert [a.name for a in written.graph.atoms] != [a.name for a in searched.graph.atoms]
    assert_same(run_staged(searched, batch, [5, 12]), run_staged(written, batch, [7]))


def test_reordering_there_and_back_gives_the_same_graph():
    graph = as_written(Cell)
    order = cheapest_chain(graph)
    back = sorted(range(len(order)), key=order.__getitem__)
    assert reordered(reordered(graph, order), back).fingerprint == graph.fingerprint
