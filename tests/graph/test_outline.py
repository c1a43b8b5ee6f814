"""Names of parts of a graph, its modules at a glance, and what crosses each cut."""

import pytest
from graph_models import ChunkAndSplit, LongSkips, PositionsAndMasks, captured
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from plait.errors import PlaitError
from plait.graph import Atom, Graph
from plait.graph.names import names_of
from plait.graph.outline import crossings, sections


def graph_of(*modules: str) -> Graph:
    return Graph("toy", tuple(Atom(f"{m}.n{i}".strip("."), m, (f"n{i}",)) for i, m in enumerate(modules)), (), ())


NETWORK = graph_of(
    "model.embed", "model.layers.0.norm", "model.layers.0.mlp", "model.layers.1.norm", "model.layers.1.mlp",
    "model.layers.10.mlp", "model", "head", "",
)  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "names", "atoms"),
    [
        ("model.layers.0", ["model.layers.0"], [1, 2]),
        ("model", ["model"], [0, 1, 2, 3, 4, 5, 6]),
        ("model.layers.*", ["model.layers.0", "model.layers.1", "model.layers.10"], [1, 2, 3, 4, 5]),
        ("*.layers.*.norm", ["model.layers.0.norm", "model.layers.1.norm"], [1, 3]),
        ("model.layers.0-1", ["model.layers.0", "model.layers.1"], [1, 2, 3, 4]),
        ("model.layers.1-10.mlp", ["model.layers.1.mlp", "model.layers.10.mlp"], [4, 5]),
        ("n8", ["n8"], [8]),
        ("head.n7", ["head.n7"], [7]),
    ],
)
def test_a_pattern_stands_for_modules_and_these_for_atoms(pattern: str, names: list[str], atoms: list[int]) -> None:
    known = names_of(NETWORK)
    assert known.matching(pattern) == names
    assert sorted({atom for name in names for atom in known.atoms_of(name)}) == atoms


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("model.layers.2", r"Did you mean model\.layers\."),
        ("model.layers.1-12", r'"model\.layers\.12" names no module'),
        ("model.layers.1-0", r"names no module"),
        ("layer*", "outermost names are model, head"),
        ("", "names no module"),
    ],
)
def test_a_name_that_is_not_there_is_told_with_those_that_are(pattern: str, message: str) -> None:
    with pytest.raises(PlaitError, match=message):
        names_of(NETWORK).matching(pattern)


def test_a_list_of_modules_is_shown_one_by_one_and_what_holds_it_by_its_parts() -> None:
    found = [(section.module, section.start, section.end) for section in sections(NETWORK, range(9))]
    assert found == [
        ("model.embed", 0, 1),
        ("model.layers.0", 1, 3),
        ("model.layers.1", 3, 5),
        ("model.layers.10", 5, 6),
        ("model", 6, 7),
        ("head", 7, 8),
        ("", 8, 9),
    ]


def test_a_part_is_shown_by_its_own_parts() -> None:
    found = sections(NETWORK, [1, 2], "model.layers.0")
    assert [section.module for section in found] == ["model.layers.0.norm", "model.layers.0.mlp"]


def test_a_module_that_holds_everything_is_opened() -> None:
    found = sections(graph_of("net.stem.conv", "net.stem.norm", "net.top.conv"), range(3))
    assert [section.module for section in found] == ["net.stem", "net.top"]


@given(st.lists(st.sampled_from(["", "a", "a.b", "a.0", "a.0.b", "a.1", "b.c.2.d", "b"]), min_size=1, max_size=8))
def test_sections_follow_one_another_without_a_gap(modules: list[str]) -> None:
    found = sections(graph_of(*modules), range(len(modules)))
    assert [atom for section in found for atom in range(section.start, section.end)] == list(range(len(modules)))
    assert all(modules[i].startswith(section.module) for section in found for i in range(section.start, section.end))


@pytest.mark.parametrize("example", [ChunkAndSplit, LongSkips, PositionsAndMasks])
def test_crossings_are_the_graphs_boundary_bytes(example: type[nn.Module]) -> None:
    graph = captured(example)[2].graph
    for rows in (1, 5):
        found = [here.num_bytes(rows) for here in crossings(graph)]
        assert found == [graph.boundary_bytes(position, rows) for position in range(len(graph.atoms))]


@pytest.mark.parametrize("example", [ChunkAndSplit, LongSkips, PositionsAndMasks])
def test_every_node_of_an_atom_has_its_module(example: type[nn.Module]) -> None:
    for atom in captured(example)[2].graph.atoms:
        assert len(atom.modules) == len(atom.nodes) and atom.modules[0] == atom.module
