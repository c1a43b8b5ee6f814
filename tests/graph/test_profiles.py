"""Other tools' profiles become chains of atoms; what cannot be is refused, with its place in the file."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlaitError
from plait.graph import Graph
from plait.graph.profiles import Profile, load_profile, profile_graph
from plait.graph.profiles.pipedream import parse_pipedream
from plait.graph.reorder import reordered

ROWS = 8


def node(
    number: int,
    description: str = "Linear(4, 4)",
    *,
    forward: Any = 1.0,
    backward: Any = 2.0,
    activation: Any = 80.0,
    parameters: Any = 0.0,
) -> str:
    return (
        f"node{number} -- {description} -- forward_compute_time={forward}, backward_compute_time={backward}, "
        f"activation_size={activation}, parameter_size={parameters}"
    )


def edge(source: int, target: int) -> str:
    return f"\tnode{source} -- node{target}"


INPUT = node(1, "Input", forward=600.0, backward=0.0, activation=800.0)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Profile]:
    def write(*lines: str, rows: int | None = ROWS) -> Profile:
        (tmp_path / "graph.txt").write_text("\n".join(lines))
        return load_profile(tmp_path / "graph.txt", rows=rows)

    return write


@pytest.fixture
def chain(written: Callable[..., Profile]) -> Callable[..., Graph]:
    return lambda *lines: profile_graph(written(*lines))


def names(graph: Graph) -> list[str]:
    return [atom.name for atom in graph.atoms]


def test_numbers_are_kept_for_one_row(written: Callable[..., Profile]) -> None:
    way = written(node(1, forward=16.0, backward=24.0, activation=80.0, parameters=12.0)).nodes[0].plain
    assert (way.forward_seconds, way.backward_seconds) == (2e-3, 3e-3)
    assert (way.saved_bytes, way.parameter_bytes) == (10.0, 12)


def test_times_are_of_256_rows_unless_told(written: Callable[..., Profile]) -> None:
    profile = written(node(1, forward=256.0), rows=None)
    assert profile.rows == 256 and profile.nodes[0].plain.forward_seconds == pytest.approx(1e-3)


def test_nodes_written_in_any_order_run_after_what_feeds_them(chain: Callable[..., Graph]) -> None:
    graph = chain(node(12), node(4), node(3), node(2), INPUT, edge(4, 12), edge(3, 4), edge(2, 3), edge(1, 2))
    assert names(graph) == ["node2 Linear", "node3 Linear", "node4 Linear", "node12 Linear"]
    assert [(v.name, v.producer, v.consumers, v.row_bytes) for v in graph.values] == [
        ("node2", 0, (1,), 10),
        ("node3", 1, (2,), 10),
        ("node4", 2, (3,), 10),
    ]


def test_branches_side_by_side_follow_the_tools_numbers(chain: Callable[..., Graph]) -> None:
    graph = chain(node(9), node(10), node(2), node(11), edge(2, 9), edge(2, 10), edge(9, 11), edge(10, 11))
    assert names(graph) == ["node2 Linear", "node9 Linear", "node10 Linear", "node11 Linear"]
    assert graph.value_by_name["node2"].consumers == (1, 2)


def test_an_input_is_neither_work_nor_sent(chain: Callable[..., Graph]) -> None:
    graph = chain(INPUT, node(2), node(3), edge(1, 2), edge(1, 3), edge(2, 3))
    assert names(graph) == ["node2 Linear", "node3 Linear"]
    assert [value.name for value in graph.values] == ["node2"]


def test_an_empty_state_and_its_items_are_inputs(chain: Callable[..., Graph]) -> None:
    nothing: dict[str, Any] = {"forward": 0.0, "backward": 0.0, "activation": 0.0}
    graph = chain(node(1, "hidden", **nothing), node(2, "__getitem__(0)", **nothing), node(3), edge(1, 2), edge(2, 3))
    assert names(graph) == ["node3 Linear"] and not graph.values


def test_a_first_layer_that_only_holds_parameters_is_no_input(chain: Callable[..., Graph]) -> None:
    graph = chain(node(1, "Embedding(9, 4)", forward=0.0, backward=0.0, parameters=144.0), node(2), edge(1, 2))
    assert names(graph) == ["node1 Embedding", "node2 Linear"]
    assert graph.value_by_name["node1"].requires_grad


def test_a_tuple_and_its_items_are_one_atom(chain: Callable[..., Graph]) -> None:
    item: dict[str, Any] = {"forward": 0.0, "backward": 0.0}
    graph = chain(
        node(1, "LSTM(4, 4)", activation="[80.0; 16.0; 16.0]", parameters=5.0),
        node(2, "__getitem__(0)", activation=80.0, **item),
        node(3, "__getitem__(1)", activation=16.0, **item),
        node(4),
        node(5),
        *(edge(1, 2), edge(1, 3), edge(2, 4), edge(3, 5), edge(4, 5)),
    )
    assert [atom.nodes for atom in graph.atoms] == [("node1", "node2", "node3"), ("node4",), ("node5",)]
    assert graph.atoms[0].binds
    assert [(v.name, v.producer, v.consumers, v.row_bytes) for v in graph.values[:2]] == [
        ("node2", 0, (1,), 10),
        ("node3", 0, (2,), 2),
    ]


def test_a_tuple_used_whole_has_the_bytes_of_all_its_parts(chain: Callable[..., Graph]) -> None:
    graph = chain(node(1, "LSTM(4, 4)", activation="[80.0; 16.0]"), node(2), edge(1, 2))
    assert graph.value_by_name["node1"].row_bytes == 12


def test_a_size_does_not_grow_with_the_batch_and_has_no_gradient(chain: Callable[..., Graph]) -> None:
    graph = chain(
        node(1), node(2, "Size(0)", forward=0.0, backward=0.0, activation=4.0), node(3), edge(1, 2), edge(2, 3)
    )
    size = graph.value_by_name["node2"]
    assert size.num_bytes(1) == size.num_bytes(1000) == 4 and not size.requires_grad
    assert graph.value_by_name["node1"].requires_grad


def test_a_view_saves_nothing(written: Callable[..., Profile]) -> None:
    assert written(node(1), node(2, "View(4)", forward=0.0, backward=0.0)).nodes[1].plain.saved_bytes == 0


def test_parameters_are_found_at_their_atom(chain: Callable[..., Graph]) -> None:
    graph = chain(node(1, parameters=64.0), node(2), node(3, parameters=32.0), edge(1, 2), edge(2, 3))
    assert [(p.name, p.num_bytes, p.atoms) for p in graph.parameters] == [("node1", 64, (0,)), ("node3", 32, (2,))]


def test_several_ends_and_parts_without_an_edge_stay(chain: Callable[..., Graph]) -> None:
    graph = chain(node(1), node(2), node(3), node(4), edge(1, 2), edge(1, 3))
    assert names(graph) == ["node1 Linear", "node2 Linear", "node3 Linear", "node4 Linear"]


def test_the_stage_the_optimiser_of_pipedream_adds_is_read_over(written: Callable[..., Profile]) -> None:
    assert written(node(1) + " -- stage_id=0").nodes[0].description == "Linear(4, 4)"


def test_another_order_moves_everything_with_its_atom(written: Callable[..., Profile]) -> None:
    edges = [edge(1, 2), edge(1, 3), edge(2, 4), edge(3, 5), edge(4, 6), edge(5, 6)]
    profile = written(*(node(i, activation=80.0 * i * i, parameters=float(i)) for i in range(1, 7)), *edges)
    given_order = profile_graph(profile, search_order=False)
    other = reordered(given_order, [0, 1, 3, 2, 4, 5])
    assert names(other) == [f"node{i} Linear" for i in (1, 2, 4, 3, 5, 6)]
    assert [other.atoms[p.atoms[0]].name for p in other.parameters] == names(given_order)
    for value in other.values:
        before = given_order.value_by_name[value.name]
        assert other.atoms[value.producer] == given_order.atoms[before.producer]
        assert {other.atoms[c] for c in value.consumers} == {given_order.atoms[c] for c in before.consumers}
    # node1 waits for node3 across every cut of the first branch
    assert [given_order.boundary_bytes(cut, 1) for cut in range(1, 6)] == [10, 50, 130, 250, 410]
    assert [other.boundary_bytes(cut, 1) for cut in range(1, 6)] == [10, 50, 170, 250, 410]


@given(st.data())
def test_every_prefix_of_the_chain_is_closed_under_what_feeds_it(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 12))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda p: p[0] < p[1])
    rank = data.draw(st.permutations(range(count)))
    edges = sorted({(rank[a], rank[b]) for a, b in data.draw(st.lists(pairs, max_size=30))})
    lines = [*(node(i) for i in range(count)), *(edge(a, b) for a, b in edges)]
    graph = profile_graph(parse_pipedream("\n".join(lines), "drawn", rows=ROWS))
    place = {atom.nodes[0]: index for index, atom in enumerate(graph.atoms)}
    assert sorted(place) == sorted(f"node{i}" for i in range(count))
    assert all(place[f"node{a}"] < place[f"node{b}"] for a, b in edges)
    assert {(v.producer, c) for v in graph.values for c in v.consumers} == {
        (place[f"node{a}"], place[f"node{b}"]) for a, b in edges
    }


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([node(1), node(2, forward=-1.0)], ["line 2", "forward_compute_time=-1.0", "0 or more"]),
        ([node(1, backward="nan")], ["line 1", "backward_compute_time=nan", "finite"]),
        ([node(1, activation="inf")], ["activation_size=inf", "bytes"]),
        ([node(1, activation="[8.0; x]")], ["activation_size=[8.0; x]"]),
        ([node(1, activation="[9.0; -1.0]")], ["activation_size=[9.0; -1.0]", "0 or more"]),
        ([node(1, activation="[1e308; 1e308]")], ["finite"]),
        ([node(1, parameters="")], ["line 1", "parameter_size"]),
        ([node(1).replace(", parameter_size=0.0", "")], ["line 1", "parameter_size is missing"]),
        ([node(1), node(1)], ["line 2", "node1 is there already, on line 1"]),
        ([node(1), "node2 -- Linear"], ["line 2", "is no node"]),
        ([node(1), "\tnode1"], ["line 2", "is no edge"]),
        ([node(1), edge(1, 7)], ["line 2", "node7", "no line describes"]),
        ([node(1), node(2), edge(1, 2), edge(2, 1)], ["circle", "node1 -> node2 -> node1"]),
        ([node(1), edge(1, 1)], ["circle", "node1 -> node1"]),
        ([node(1, forward=0.0, parameters=4.0)], ["nothing to plan"]),
        ([INPUT], ["nothing to plan"]),
        ([""], ["nothing to plan"]),
    ],
)
def test_a_damaged_text_is_refused_with_its_line(
    chain: Callable[..., Graph], lines: list[str], said: list[str]
) -> None:
    with pytest.raises(PlaitError) as error:
        chain(*lines)
    assert "graph.txt" in str(error.value) and all(part in str(error.value) for part in said), str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlaitError, match=r"nowhere\.txt.*No such file"):
        load_profile(tmp_path / "nowhere.txt")
    (tmp_path / "picture").write_bytes(bytes(range(128, 256)))
    with pytest.raises(PlaitError, match="is not text"):
        load_profile(tmp_path / "picture")


def way(name: str = "vanilla", **changes: Any) -> dict[str, Any]:
    plain = {"timePerSample": 3.0, "parameterSize": 10.0, "memoryUsageA": 7.0, "memoryUsageB": 20.0}
    return {"id": name, **plain, "syncTimeFw": {}, "syncTimeBw": {}, **changes}


def piper(**changes: Any) -> dict[str, Any]:
    """An input, two layers and the edges between them."""
    nothing = way(timePerSample=0.0, parameterSize=0.0)
    return {
        "nodes": [
            {"id": 0, "name": "tensor", "TMPCs": {"1": [nothing]}},
            {
                "id": 4,
                "name": "Layer",
                "TMPCs": {
                    "1": [way(), way("activation recomp", timePerSample=4.25, memoryUsageA=1.0)],
                    "2": [way(timePerSample=1.5, parameterSize=5.0, syncTimeFw={"0": 6.0})],
                },
            },
            {"id": 3, "name": "Layer", "TMPCs": {"1": [way()]}},
        ],
        "edges": [
            {"sourceId": 0, "destId": 4, "communicationCost": 5.0},
            {"sourceId": 4, "destId": 3, "communicationCost": 6.5},
        ],
        **changes,
    }


@pytest.fixture
def as_json(tmp_path: Path) -> Callable[[Any], Profile]:
    def write(content: Any) -> Profile:
        (tmp_path / "piper.json").write_text(json.dumps(content))
        return load_profile(tmp_path / "piper.json")

    return write


def test_piper_keeps_every_degree_and_way(as_json: Callable[[Any], Profile]) -> None:
    layer = as_json(piper()).node_by_name["4"]
    assert [(w.degree, w.recompute) for w in layer.ways] == [(1, False), (1, True), (2, False)]
    assert layer.ways[1].saved_bytes == 1.0 and layer.ways[2].parameter_bytes == 5
    assert layer.ways[2].forward_exchange == {"0": 6.0}


def test_what_recomputing_adds_is_the_forward(as_json: Callable[[Any], Profile]) -> None:
    layer = as_json(piper()).node_by_name["4"]
    assert (layer.plain.forward_seconds, layer.plain.backward_seconds) == (1.25, 1.75)
    assert layer.ways[1].forward_seconds + layer.ways[1].backward_seconds == 4.25


def test_without_recomputing_a_third_is_the_forward(as_json: Callable[[Any], Profile]) -> None:
    plain = as_json(piper()).node_by_name["3"].plain
    assert (plain.forward_seconds, plain.backward_seconds) == pytest.approx((1.0, 2.0))


def test_piper_becomes_a_chain(as_json: Callable[[Any], Profile]) -> None:
    graph = profile_graph(as_json(piper()))
    assert names(graph) == ["4 Layer", "3 Layer"]
    assert [(v.name, v.producer, v.consumers, v.row_bytes) for v in graph.values] == [("4", 0, (1,), math.ceil(6.5))]
    assert [(p.name, p.num_bytes) for p in graph.parameters] == [("4", 10), ("3", 10)]


def test_edges_of_one_node_with_other_sizes_are_other_tensors(as_json: Callable[[Any], Profile]) -> None:
    content = piper()
    content["nodes"] += [{"id": 5, "TMPCs": {"1": [way()]}}, {"id": 6, "TMPCs": {"1": [way()]}}]
    content["edges"] += [
        {"sourceId": 4, "destId": 5, "communicationCost": 6.5},
        {"sourceId": 4, "destId": 6, "communicationCost": 9.0},
    ]
    graph = profile_graph(as_json(content))
    assert {v.name: (len(v.consumers), v.row_bytes) for v in graph.values} == {"4": (2, 7), "4.2": (1, 9)}


def changed(place: list[Any], value: Any) -> dict[str, Any]:
    content: Any = piper()
    target = content
    for step in place[:-1]:
        target = target[step]
    if value is None:
        del target[place[-1]]
    else:
        target[place[-1]] = value
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (changed(["nodes"], None), ["nodes is missing"]),
        (changed(["nodes", 1, "TMPCs", "1", 0, "timePerSample"], None), ["nodes.1.TMPCs.1.0.timePerSample is missing"]),
        (changed(["nodes", 1, "TMPCs", "1", 0, "timePerSample"], -3.0), ["timePerSample = -3.0", "greater than"]),
        (changed(["nodes", 1, "TMPCs", "1", 0, "memoryUsageA"], math.nan), ["memoryUsageA = nan"]),
        (changed(["nodes", 1, "TMPCs", "1", 0, "id"], "activation recomp"), ["node 4", "without recomputation"]),
        (changed(["nodes", 1, "TMPCs", "1"], None), ["node 4", "on one device"]),
        (changed(["nodes", 2, "id"], 4), ["two nodes have id 4"]),
        (changed(["edges", 0, "sourceId"], 9), ["9 -> 4", "not among the nodes"]),
        (changed(["edges", 0, "sourceId"], 3), ["circle"]),
        ([], ["piper.json"]),
    ],
)
def test_a_damaged_json_is_refused_with_its_place(
    as_json: Callable[[Any], Profile], content: Any, said: list[str]
) -> None:
    with pytest.raises(PlaitError) as error:
        profile_graph(as_json(content))
    assert "piper.json" in str(error.value) and all(part in str(error.value) for part in said), str(error.value)


def test_json_cut_short_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{\n "nodes": [')
    with pytest.raises(PlaitError, match=r"half\.json, line 2: not valid JSON"):
        load_profile(tmp_path / "half.json")


def test_rows_of_a_piper_profile_are_refused(tmp_path: Path) -> None:
    (tmp_path / "piper.json").write_text(json.dumps(piper()))
    with pytest.raises(PlaitError, match="--profile-batch 32 does not apply"):
        load_profile(tmp_path / "piper.json", rows=32)
