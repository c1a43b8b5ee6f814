"""The plan's file: it round-trips, and whatever is wrong with it is said in one sentence."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_plans import PLAN, plan

from plait.cluster import local_cluster
from plait.errors import PlaitError
from plait.plan import StagePlan, load_plan, save_plan
from plait.plan.batches import describe

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def plans(draw):
    replicas = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    device = iter(range(sum(replicas)))
    stages = tuple(
        StagePlan(
            n, n + 1, tuple(next(device) for _ in range(size)), tuple(draw(st.floats(0.1, 9)) for _ in range(size))
        )
        for n, size in enumerate(replicas)
    )
    return replace(
        PLAN,
        model=draw(st.text()),
        cluster=local_cluster(sum(replicas)),
        batch_size=draw(st.integers(1, 2**40)),
        micro_batches=draw(st.integers(1, 1000)),
        schedule=draw(st.sampled_from(["gpipe", "1f1b"])),
        stages=stages,
        bucket_bytes=draw(st.integers(1, 2**40)),
        predicted_seconds=draw(st.none() | st.floats(0, 1e6)),
        notes=draw(st.dictionaries(st.text(), json_values, max_size=3)),
    )


@given(plans())
@settings(max_examples=50, deadline=None)
def test_a_plan_round_trips_through_its_file(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    save_plan(made, path)
    assert load_plan(path) == made


def test_a_plan_keeps_the_shape_of_its_batch(tmp_path):
    batch = {"x": torch.zeros(4, 3), "more": [torch.zeros(4, dtype=torch.int64), None, 3]}
    made = plan(batch=describe(batch))
    save_plan(made, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").batch == made.batch


def test_folders_on_the_way_are_made(tmp_path):
    save_plan(PLAN, tmp_path / "a" / "b" / "plan.json")
    assert load_plan(tmp_path / "a" / "b" / "plan.json") == PLAN


# What is written is written whole


def test_saving_over_a_plan_replaces_it_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    save_plan(plan(batch_size=32), path)
    assert load_plan(path).batch_size == 32
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_what_cannot_be_written_leaves_the_old_plan_and_nothing_beside_it(tmp_path):
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    with pytest.raises(TypeError):
        save_plan(plan(notes={"set": {1, 2}}), path)
    assert load_plan(path) == PLAN
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_folder_in_the_way_is_an_error_that_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(PlaitError, match=r"cannot write the plan to .*plan.json: .*Choose another place"):
        save_plan(PLAN, tmp_path / "plan.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


# What is wrong with a file


def error_for(path) -> str:
    with pytest.raises(PlaitError) as caught:
        load_plan(path)
    return str(caught.value)


def damaged(tmp_path, change) -> str:
    """What is said of a plan file after `change(content)`."""
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return error_for(path)


def test_a_file_that_is_not_there_is_told_how_to_make_it(tmp_path):
    assert "plait plan JOB" in error_for(tmp_path / "none.json")


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": "plait-plan",', b"\xff\xfe\x00"], ids=repr)
def test_a_damaged_file_is_no_json(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    message = error_for(path)
    assert str(path) in message
    assert "not valid JSON" in message


@pytest.mark.parametrize("content", ["[]", "3", "null", "{}", '{"format": "other"}'])
def test_another_kind_of_json_is_not_a_plan(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content)
    assert '`format` must be "plait-plan"' in error_for(path)


@pytest.mark.parametrize("version", [0, 3, 99, "1", None, True, 1.5])
def test_a_version_this_plait_does_not_know_is_refused(tmp_path, version):
    message = damaged(tmp_path, lambda content: content.update(version=version))
    assert f"schema version {version!r}" in message
    assert "reads versions up to 2" in message


@pytest.mark.parametrize(
    "field", ["model", "fingerprint", "cluster", "batch_size", "micro_batches", "schedule", "stages"]
)
def test_a_missing_field_is_named(tmp_path, field):
    message = damaged(tmp_path, lambda content: content.pop(field))
    assert f"damaged: {field} is missing" in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", "many"),
        ("batch_size", 0),
        ("micro_batches", -1),
        ("micro_batches", 2.5),
        ("stages", []),
        ("stages", {"start": 0}),
        ("schedule", 3),
        ("bucket_bytes", 0),
        ("cluster", "local:4"),
        ("predicted_seconds", "soon"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_should_be(tmp_path, field, value):
    message = damaged(tmp_path, lambda content: content.update({field: value}))
    assert f"damaged: {field}" in message
    assert repr(value) in message
    assert "Plan again" in message


def test_a_wrong_value_inside_a_stage_is_named_with_its_place(tmp_path):
    assert "stages.1.devices.0" in damaged(tmp_path, lambda content: content["stages"][1].update(devices=["gpu"]))


def test_a_field_nobody_knows_is_refused(tmp_path):
    assert "colour" in damaged(tmp_path, lambda content: content.update(colour="red"))


def test_a_damaged_cluster_is_told_with_the_plan_it_is_in(tmp_path):
    message = damaged(tmp_path, lambda content: content["cluster"]["links"].clear())
    assert "the cluster in plan" in message
    assert str(tmp_path / "plan.json") in message
