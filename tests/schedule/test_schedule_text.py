"""Actions and lanes as text, as a plan's file holds them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_strategies import line, pipelines

from plait.errors import PlaitError
from plait.schedule import Action, check_schedule, lanes_text, make_schedule, parse_action, schedule_from_lanes


@given(st.integers(0, 999), st.sampled_from("FBIW"), st.integers(0, 999))
@settings(deadline=None)
def test_an_action_round_trips_through_its_text(stage, kind, micro_batch):
    action = Action(stage, kind, micro_batch)
    assert parse_action(str(action)) == action


@pytest.mark.parametrize("wrong", ["", "F", "0X1", "F0", "0F", "-1F0", "0F1 0F2", "0.5F1"])
def test_what_is_no_action_is_refused_with_an_example(wrong):
    with pytest.raises(PlaitError, match="as in 2F0"):
        parse_action(wrong)


def test_lanes_are_one_line_per_position():
    assert lanes_text(make_schedule("1f1b", line(2), 2)) == ("0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1")


@given(pipelines())
@settings(deadline=None)
def test_a_schedule_round_trips_through_its_lanes(pipeline):
    name, positions, micro_batches = pipeline
    schedule = make_schedule(*pipeline)
    assert schedule_from_lanes(name, lanes_text(schedule), positions, micro_batches) == schedule


@given(pipelines(), st.data())
@settings(deadline=None)
def test_a_short_last_batch_runs_the_lanes_without_its_missing_micro_batches(pipeline, data):
    name, positions, micro_batches = pipeline
    fewer = data.draw(st.integers(1, micro_batches))
    short = schedule_from_lanes(name, lanes_text(make_schedule(*pipeline)), positions, fewer)
    check_schedule(short, positions, fewer)


def test_lanes_for_fewer_micro_batches_than_there_are_do_not_do():
    with pytest.raises(PlaitError, match="lane 0 lacks 0F2: every one of the 3 micro-batches"):
        schedule_from_lanes("mine", lanes_text(make_schedule("gpipe", line(2), 2)), line(2), 3)


def test_a_cell_that_is_no_action_is_named_with_its_lane():
    with pytest.raises(PlaitError, match="lane 1, action 1: '1X0' is not an action"):
        schedule_from_lanes("mine", ["0F0,0B0", "1F0, 1X0"], line(2), 1)


def test_an_empty_lane_is_found():
    with pytest.raises(PlaitError, match="lane 1 lacks 1F0"):
        schedule_from_lanes("mine", ["0F0,0B0", ""], line(2), 1)
