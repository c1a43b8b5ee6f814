"""Plans whose replicas are tensor groups: what is accepted, what is refused, and the file."""

import json
from dataclasses import replace

import pytest
from small_plans import GRAPH, plan

from plait.errors import PlaitError
from plait.graph import Graph, Parameter
from plait.plan import StagePlan, even_stages, load_plan, save_plan, validate

SHARED = StagePlan(0, 4, (0, 1, 2, 3), (1.0, 1.0), tensor=2, split={"p1": 0, "p2": 1})


def stages(**changes: object) -> tuple[StagePlan, ...]:
    return (replace(SHARED, **changes),)


def test_replicas_are_groups_of_devices_one_after_the_other():
    made = plan(stages=stages())
    validate(made, GRAPH)
    assert (SHARED.replicas, SHARED.groups) == (2, ((0, 1), (2, 3)))
    assert made.layout() == "1x2x2"
    assert plan(stages=even_stages([2], 4, [[0, 1], [2, 3]])).layout() == "2x2"
    mixed = (replace(SHARED, end=2, devices=(0, 1), shares=(1.0,), split={}), StagePlan(2, 4, (2, 3), (1.0, 1.0)))
    assert plan(stages=mixed).layout() == "1x2+2"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tensor": 3}, "stage 0 has 4 devices for tensor groups of 3"),
        ({"tensor": 0}, "stage 0 has 4 devices for tensor groups of 0"),
        ({"shares": (1.0,) * 4}, "for 2 replicas: one positive number per replica"),
        ({"tensor": 1, "shares": (1.0,) * 4}, "stage 0 splits p1, but its replicas are single devices"),
        ({"split": {"p9": 0}}, "stage 0 splits p9, which is no parameter or buffer of it"),
        ({"split": {"p1": 2}}, r"splits p1 along dimension 2, but its shape is \[8, 8\]"),
        ({"split": {"p1": -1}}, "splits p1 along dimension -1"),
    ],
    ids=str,
)
def test_groups_and_splits_that_cannot_be_are_refused(changes, why):
    with pytest.raises(PlaitError, match=why):
        validate(plan(stages=stages(**changes)), GRAPH)


def test_a_parameter_smaller_than_the_group_is_not_split():
    graph = replace(GRAPH, parameters=(Parameter("p1", (1, 8), "float32", (1,), True, False),))
    with pytest.raises(PlaitError, match=r"splits p1 of shape \[1, 8\] along dimension 0 over 2 devices"):
        validate(plan(fingerprint=graph.fingerprint, stages=stages(split={"p1": 0})), graph)


def tied() -> Graph:
    return replace(GRAPH, parameters=(*GRAPH.parameters, Parameter("both", (8, 8), "float32", (0, 3), True, False)))


@pytest.mark.parametrize(
    ("second", "fits"),
    [
        ({"tensor": 2, "split": {"both": 0}}, True),
        ({"tensor": 2, "split": {"both": 1}}, False),
        ({"tensor": 2, "split": {}}, False),
        ({"tensor": 1, "shares": (1.0, 1.0)}, False),
    ],
    ids=str,
)
def test_stages_that_share_a_parameter_have_the_same_parts_of_it(second, fits):
    graph = tied()
    first = StagePlan(0, 2, (0, 1), (1.0,), tensor=2, split={"both": 0})
    other = StagePlan(2, 4, (2, 3), **{"shares": (1.0,), **second})
    made = plan(fingerprint=graph.fingerprint, stages=(first, other))
    if fits:
        validate(made, graph)
    else:
        with pytest.raises(PlaitError, match="both is held by several stages, on tensor groups that differ"):
            validate(made, graph)


def test_a_device_in_two_stages_is_in_groups_of_one_size():
    one = StagePlan(0, 2, (0, 1), (1.0,), tensor=2)
    with pytest.raises(PlaitError, match=r"groups of 2 and .* in groups of 1"):
        validate(plan(stages=(one, StagePlan(2, 4, (0, 1), (1.0,)))), GRAPH)


def test_a_file_keeps_groups_and_splits(tmp_path):
    made = plan(stages=stages())
    save_plan(made, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == made


def test_a_file_of_the_version_before_groups_still_loads(tmp_path):
    path = tmp_path / "plan.json"
    save_plan(plan(), path)
    content = json.loads(path.read_text())
    content["version"] = 1
    for stage in content["stages"]:
        del stage["tensor"], stage["split"]
    path.write_text(json.dumps(content))
    assert load_plan(path) == plan()
