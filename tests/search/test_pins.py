"""Pins: what they say, what they make of a partition, and which of them cannot hold."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planning import chain, cluster_with_cores

from plait.cluster import local_cluster
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.errors import PlaitError
from plait.graph import Atom, Graph, Parameter, Value
from plait.search import Answer, Pin, Wishes, as_pins, find_plans, limits_of, load_pins, parse_pin
from plait.search.partition import SLACK, balanced_boundaries

MODULES = ("stem", "blocks.0", "blocks.0.mlp", "blocks.1", "blocks.2", "head")


def modelled(modules: Sequence[Sequence[str]], binds: str = "tuple: split makes a tuple") -> tuple[Graph, Costs]:
    """A chain of atoms, each with one node in every module that is listed for it."""
    graph, costs = chain([1.0] * len(modules))
    atoms = tuple(
        Atom(f"a{i}", own[0], tuple(f"n{i}_{k}" for k in range(len(own))), (binds,) if len(own) > 1 else (), tuple(own))
        for i, own in enumerate(modules)
    )
    graph = Graph("toy", atoms, graph.values, graph.parameters)
    return graph, Costs(graph.fingerprint, costs.atoms, costs.optimizer)


TOY = [["stem"], ["blocks.0"], ["blocks.0.mlp"], ["blocks.1"], ["blocks.1"], ["blocks.2"], ["blocks.2"], ["head"]]


def plans(pins: Sequence[str], *, modules: Sequence[Sequence[str]] = TOY, devices: int = 4, **wishes: int) -> Answer:
    graph, costs = modelled(modules)
    return find_plans(
        graph,
        costs,
        cluster_with_cores(devices),
        batch_size=16,
        wishes=Wishes(pins=as_pins(pins), **wishes),  # type: ignore[arg-type]
    )


def starts(answer: Answer) -> set[tuple[int, ...]]:
    return {tuple(stage.start for stage in candidate.plan.stages) for candidate in answer.candidates}


# What pins say


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("cut before blocks.2", Pin("cut before", ("blocks.2",))),
        ("  no   cut after  a,b ", Pin("no cut after", ("a", "b"))),
        ("keep embed, head", Pin("keep", ("embed", "head"))),
        ("keep each blocks.*", Pin("keep each", ("blocks.*",))),
        ("stage 2=head", Pin("stage", ("head",), 2)),
    ],
)
def test_a_sentence_becomes_a_pin_and_a_pin_a_sentence(text: str, pin: Pin) -> None:
    assert parse_pin(text) == pin
    assert parse_pin(str(pin)) == pin


@pytest.mark.parametrize(
    "text", ["", "cut", "cut before", "cut before a b", "keep a,,b", "stage = a", "stage -1 = a", "stage 1 =", "hold a"]
)
def test_other_sentences_are_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(PlaitError, match=r'"cut before MODULE".*"keep each MODULE".*"stage 0 = MODULE"'):
        parse_pin(text)


def test_pins_are_a_list_not_one_sentence() -> None:
    with pytest.raises(PlaitError, match=r'write \["cut before a"\]'):
        as_pins("cut before a")


def test_a_file_says_the_same_words(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    path.write_text('pins = ["cut before blocks.2", "keep stem, blocks.0"]')
    assert load_pins(path) == as_pins(["cut before blocks.2", "keep stem, blocks.0"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("pins = [", "not valid TOML"),
        ('pin = ["cut before a"]', "nothing else"),
        ('pins = "cut before a"', "one list of sentences"),
        ("pins = [1]", "one list of sentences"),
        ('pins = ["cut here"]', r'pins.toml: the pin "cut here" is none'),
        ("\udcff", "not valid TOML"),
    ],
)
def test_a_file_of_anything_else_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "pins.toml"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(PlaitError, match=message):
        load_pins(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlaitError, match="cannot be read: No such file"):
        load_pins(tmp_path / "nowhere.toml")


# What they make of a partition


@pytest.mark.parametrize(
    ("pins", "found"),
    [
        (["cut before blocks.2"], {(0, 5)}),
        (["cut after blocks.0"], {(0, 3)}),
        (["cut after a1"], {(0, 2)}),
        (["no cut before blocks.1", "no cut after blocks.1", "keep each blocks.*"], {(0, 1), (0, 7)}),
        (["keep stem, blocks.0-2"], {(0, 7)}),
        (["stage 0 = stem, blocks.0", "stage 1 = blocks.1-2"], {(0, 3)}),
        (["stage 1 = blocks.0"], {(0, 1)}),
        (["cut before blocks.0.mlp", "no cut before stem", "no cut after head"], {(0, 2)}),
    ],
)
def test_two_stages_begin_where_the_pins_leave_room(pins: list[str], found: set[tuple[int, ...]]) -> None:
    assert starts(plans(pins, stages=2)) <= found


def test_layouts_with_too_few_or_too_many_stages_are_left_out() -> None:
    assert min(len(found) for found in starts(plans(["cut before blocks.1", "cut before blocks.2"]))) >= 3
    assert {len(found) for found in starts(plans(["keep stem, blocks.2"]))} == {1, 2}
    assert {len(found) for found in starts(plans(["keep stem, head"]))} == {1}


def test_a_pattern_of_cuts_cuts_before_every_match() -> None:
    assert starts(plans(["cut before blocks.*"], stages=4)) == {(0, 1, 3, 5)}
    assert all({1, 3, 5} <= set(edges) for edges in starts(plans(["cut before blocks.*"])))


def test_other_atoms_between_those_of_a_module_go_to_either_side() -> None:
    towers = [["text"], ["image"], ["text"], ["image"], ["head"]]
    assert starts(plans(["cut after text"], modules=towers, stages=2)) == {(0, 3)}
    assert starts(plans(["cut before image"], modules=towers, stages=2)) == {(0, 1)}
    assert starts(plans(["keep text", "keep image"], modules=towers, stages=2)) == {(0, 4)}


# Which cannot hold


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (["cut before blocks.7"], r'pin "cut before blocks.7": "blocks.7" names no module.*Did you mean blocks.\d'),
        (["keep blocks.0-5"], '"blocks.5" names no module'),
        (["keep xyzzy"], "outermost names are stem, blocks, head"),
        (["cut before stem"], "nothing is computed before stem"),
        (["cut after head"], "nothing is computed after head"),
        (
            ["no cut after stem", "cut before blocks.2", "keep blocks.1, blocks.2"],
            '^the pins "cut before blocks.2" and "keep blocks.1, blocks.2" contradict each other: '
            "a cut between a4 and a5 is asked for, and ruled out",
        ),
        (["cut after stem", "no cut before blocks.0"], "contradict each other: a cut between a0 and a1"),
        (["cut before blocks.0.mlp", "keep each blocks.*"], "contradict each other: a cut between a1 and a2"),
        (["stage 0 = stem, blocks.1", "cut before blocks.0"], "stage 0 is to reach across it"),
        (
            ["stage 0 = blocks.2", "stage 1 = blocks.1"],
            "blocks.2 is to be in stage 0, but needs what blocks.1 computes",
        ),
        (["stage 0 = blocks", "stage 1 = blocks.1"], "blocks and blocks.1 share the atom a3"),
        (["stage 2 = blocks.0"], 'pin "stage 2 = blocks.0" cannot hold: between the start and stage 2 lie 2 cuts'),
        (["stage 1 = stem"], "leave room for 0"),
        (["stage 0 = blocks.0", "cut before blocks.0"], "between the start and stage 0 lie 0 cuts, but 1 is asked for"),
        (["stage 1 = blocks.0", "stage 3 = blocks.1"], "between stage 1 and stage 3 lie 2 cuts, but .* room for 1"),
    ],
)
def test_pins_that_cannot_hold_are_named_with_the_reason(pins: list[str], message: str) -> None:
    with pytest.raises(PlaitError, match=message):
        plans(pins)


@pytest.mark.parametrize(
    ("pins", "wishes", "message"),
    [
        (["cut before blocks.1", "cut before blocks.2"], {"stages": 2}, "together need at least 3 stages.* allow 2"),
        (["stage 7 = head"], {"stages": 2}, 'pin "stage 7 = head" needs at least 8 stages'),
        (["stage 7 = head"], {}, "needs at least 8 stages.* allow 1 to 4"),
        (["keep stem, head", "no cut after stem"], {"stages": 2}, '^pin "keep stem, head" needs at most 1 stages'),
    ],
)
def test_pins_that_need_other_stage_counts_are_named(pins: list[str], wishes: dict[str, int], message: str) -> None:
    with pytest.raises(PlaitError, match=message):
        plans(pins, **wishes)


def test_a_cut_inside_an_atom_is_refused_with_the_rule_that_binds() -> None:
    bound = [["stem"], ["blocks.0", "blocks.1"], ["head"]]
    for pin in ("cut before blocks.1", "cut after blocks.0"):
        with pytest.raises(PlaitError, match=r"would part n1_. \(in blocks.*stay together: tuple: split makes a tuple"):
            plans([pin], modules=bound)
    assert starts(plans(["cut before blocks.0", "cut after blocks.1"], modules=bound)) == {(0, 1, 2)}


def test_branches_side_by_side_are_told_apart_from_dependence() -> None:
    graph, _ = modelled([["stem"], ["left"], ["right"], ["head"]])
    beside = (("n0_0", 0, (1, 2)), ("n1_0", 1, (3,)), ("n2_0", 2, (3,)))
    values = tuple(Value(name, producer, to, (1, 1), "float32", 0, True) for name, producer, to in beside)
    graph = Graph("branches", graph.atoms, values, graph.parameters)
    with pytest.raises(PlaitError, match="right is to be in stage 0, but comes after left of stage 1 in the order"):
        limits_of(as_pins(["stage 0 = right", "stage 1 = left"]), graph)


# Whatever is pinned


@st.composite
def pinned(draw: st.DrawFn) -> tuple[Graph, Costs, tuple[Pin, ...], int]:
    """A chain with skips, whose atoms belong to modules in no particular order, and pins on these."""
    size = draw(st.integers(2, 7))
    values = []
    for producer in range(size - 1):
        consumers = sorted({producer + 1, draw(st.integers(producer + 1, size - 1))})
        shape = (1, draw(st.integers(1, 60)))
        values.append(Value(f"n{producer}", producer, tuple(consumers), shape, "float32", 0, True))
    modules = [draw(st.sampled_from(MODULES)) for _ in range(size)]
    atoms = tuple(Atom(f"a{i}", modules[i], (f"n{i}",)) for i in range(size))
    parameters = tuple(Parameter(f"p{i}", (10,), "float32", (i,), True, False) for i in range(size))
    graph = Graph("random", atoms, tuple(values), parameters)
    seconds = st.floats(0.01, 1.0)
    each = tuple(AtomCost(0.0, draw(seconds), 0.0, draw(seconds), 0.0, 10.0) for _ in range(size))
    costs = Costs(graph.fingerprint, {"cpu": each}, {"cpu": OptimizerCost(2.0, 0.0, 0.0)}, {})
    names = st.lists(st.sampled_from([*modules, *(atom.name for atom in atoms)]), min_size=1, max_size=2, unique=True)
    forms = st.sampled_from(["cut before", "cut after", "no cut before", "no cut after", "keep", "keep each", "stage"])
    pins = []
    for _ in range(draw(st.integers(0, 3))):
        form = draw(forms)
        stage = draw(st.integers(0, 2)) if form == "stage" else None
        pins.append(Pin(form, tuple(draw(names)), stage))
    return graph, costs, tuple(pins), draw(st.integers(1, min(4, size)))


def meets(pin: Pin, graph: Graph, boundaries: Sequence[int]) -> bool:
    """What a pin means, told once more in terms of the stage that every atom is in."""
    stage_of = [sum(boundary <= atom for boundary in boundaries) for atom in range(len(graph.atoms))]

    def own(name: str) -> list[int]:
        return [i for i, a in enumerate(graph.atoms) if name == a.name or f"{a.module}.".startswith(f"{name}.")]

    groups = [own(name) for name in pin.modules]
    if pin.form in ("keep", "stage"):
        groups = [[atom for group in groups for atom in group]]
    if pin.form == "stage":
        return all(stage_of[atom] == pin.stage for atom in groups[0])
    if pin.form.startswith("keep"):
        return all(len({stage_of[atom] for atom in group}) == 1 for group in groups)
    edges = [(group[-1], group[-1] + 1) if pin.form.endswith("after") else (group[0] - 1, group[0]) for group in groups]
    parted = [a >= 0 and b < len(stage_of) and stage_of[a] != stage_of[b] for a, b in edges]
    return not any(parted) if pin.form.startswith("no") else all(parted)


@given(pinned())
@settings(max_examples=120, deadline=None)
def test_the_partition_is_the_best_of_those_that_hold_to_the_pins_or_there_is_none(
    made: tuple[Graph, Costs, tuple[Pin, ...], int],
) -> None:
    graph, costs, pins, stages = made
    size, cluster = len(graph.atoms), local_cluster(stages, bandwidth=1000.0)
    everything = list(combinations(range(1, size), stages - 1))
    allowed = [found for found in everything if all(meets(pin, graph, found) for pin in pins)]

    def bottleneck(boundaries: Sequence[int]) -> float:
        edges = list(pairwise([0, *boundaries, size]))
        loads = [sum(a.forward_per_row + a.backward_per_row for a in costs.atoms["cpu"][i:j]) * 2 for i, j in edges]
        return max(loads + [2 * graph.boundary_bytes(boundary, 2) / 1000.0 for boundary in boundaries])

    def sent(boundaries: Sequence[int]) -> int:
        return sum(graph.boundary_bytes(boundary, 2) for boundary in boundaries)

    wishes = Wishes(stages=stages, micro_batches=2, pins=pins)
    if not allowed:
        with pytest.raises(PlaitError, match="pin"):
            find_plans(graph, costs, cluster, batch_size=4, wishes=wishes)
        return
    limits = limits_of(pins, graph)
    found = tuple(balanced_boundaries(graph, costs, cluster, [[i] for i in range(stages)], 2, limits))
    assert found in allowed
    limit = min(map(bottleneck, allowed)) * (1 + SLACK)
    assert bottleneck(found) <= limit * (1 + 1e-9)
    assert sent(found) <= min(sent(other) for other in allowed if bottleneck(other) <= limit * (1 - 1e-9))
    for candidate in find_plans(graph, costs, cluster, batch_size=4, wishes=wishes, budget_seconds=0.1).candidates:
        assert tuple(stage.start for stage in candidate.plan.stages[1:]) in allowed


@given(pinned())
@settings(max_examples=80, deadline=None)
def test_stage_counts_are_those_for_which_a_partition_exists(
    made: tuple[Graph, Costs, tuple[Pin, ...], int],
) -> None:
    graph, _, pins, _ = made
    size = len(graph.atoms)
    counts = {
        stages
        for stages in range(1, size + 1)
        if any(all(meets(pin, graph, found) for pin in pins) for found in combinations(range(1, size), stages - 1))
    }
    try:
        assert limits_of(pins, graph).stage_counts == counts
    except PlaitError as error:
        assert not counts and "pin" in str(error)
