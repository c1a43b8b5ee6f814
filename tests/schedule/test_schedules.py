"""Orders of micro-batches: each action once, in an order that can run, holding as little as promised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlaitError
from plait.schedule import SCHEDULES, Action, Schedule, make_schedule, parse_action

names = st.sampled_from(sorted(SCHEDULES))
sizes = st.integers(1, 9)


def line(stages: int) -> list[list[int]]:
    """One stage at each position."""
    return [[stage] for stage in range(stages)]


def text(schedule: Schedule) -> list[str]:
    return [" ".join(map(str, lane)) for lane in schedule.lanes]


def test_gpipe_runs_all_forwards_then_all_backwards():
    assert text(make_schedule("gpipe", line(2), 3)) == [
        "0F0 0F1 0F2 0B0 0B1 0B2",
        "1F0 1F1 1F2 1B0 1B1 1B2",
    ]


def test_1f1b_warms_up_then_alternates_then_drains():
    assert text(make_schedule("1f1b", line(4), 5)) == [
        "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0B2 0B3 0B4",
        "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1B3 1B4",
        "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2B4",
        "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4",
    ]


def test_1f1b_with_fewer_micro_batches_than_stages_is_all_warm_up():
    assert text(make_schedule("1f1b", line(4), 2))[0] == "0F0 0F1 0B0 0B1"


@given(names, sizes, sizes)
def test_every_micro_batch_goes_forward_and_back_once_on_every_stage(name, stages, micro_batches):
    for stage, lane in enumerate(make_schedule(name, line(stages), micro_batches).lanes):
        expected = {Action(stage, kind, m) for kind in "FB" for m in range(micro_batches)}
        assert set(lane) == expected
        assert len(lane) == len(expected)


@given(names, sizes, sizes)
def test_forwards_and_backwards_each_come_in_the_order_of_the_micro_batches(name, stages, micro_batches):
    for lane in make_schedule(name, line(stages), micro_batches).lanes:
        for kind in "FB":
            assert [a.micro_batch for a in lane if a.kind == kind] == list(range(micro_batches))


@given(names, sizes, sizes)
def test_a_backward_comes_after_its_forward(name, stages, micro_batches):
    for lane in make_schedule(name, line(stages), micro_batches).lanes:
        place = {action[1:]: index for index, action in enumerate(lane)}
        assert all(place["F", m] < place["B", m] for m in range(micro_batches))


@given(sizes, sizes)
def test_1f1b_holds_at_most_as_many_micro_batches_as_stages_follow(stages, micro_batches):
    for stage, lane in enumerate(make_schedule("1f1b", line(stages), micro_batches).lanes):
        held = most = 0
        for action in lane:
            held += 1 if action.kind == "F" else -1
            most = max(most, held)
        assert most == min(stages - stage, micro_batches)


@given(st.integers(0, 999), st.sampled_from("FBIW"), st.integers(0, 999))
def test_an_action_round_trips_through_its_text(stage, kind, micro_batch):
    action = Action(stage, kind, micro_batch)
    assert parse_action(str(action)) == action


@pytest.mark.parametrize("wrong", ["", "F", "0X1", "F0", "0F", "-1F0", "0F1 0F2", "0.5F1"])
def test_what_is_no_action_is_refused_with_an_example(wrong):
    with pytest.raises(PlaitError, match="as in 2F0"):
        parse_action(wrong)


def test_an_unknown_schedule_is_refused_with_the_known_ones():
    with pytest.raises(PlaitError, match="unknown schedule 'zb-h3'; choose one of gpipe, 1f1b"):
        make_schedule("zb-h3", line(2), 2)
