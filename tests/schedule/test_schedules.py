"""The schedules by name: each can run, holds no more than it says, and has the bubble that its papers give."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_strategies import idle_units, line, most_held, pipelines

from plait.errors import PlaitError
from plait.schedule import RECIPES, Schedule, check_schedule, make_schedule, positions_for
from plait.schedule.clock import play

sizes = st.integers(1, 9)


def text(schedule: Schedule) -> list[str]:
    return [" ".join(map(str, lane)) for lane in schedule.lanes]


def whole_backward(stage, kind):
    return 2 if kind == "B" else 1


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


def test_zb_h1_puts_weight_gradients_where_1f1b_would_wait():
    assert text(make_schedule("zb-h1", line(3), 4)) == [
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3",
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3",
    ]


@given(pipelines())
@settings(deadline=None)
def test_every_schedule_can_run(pipeline):
    _, positions, micro_batches = pipeline
    check_schedule(make_schedule(*pipeline), positions, micro_batches)


@given(pipelines())
@settings(deadline=None)
def test_no_position_holds_more_than_the_recipe_says(pipeline):
    name, positions, micro_batches = pipeline
    held = map(most_held, make_schedule(*pipeline).lanes)
    assert all(
        most <= limit for most, limit in zip(held, RECIPES[name].in_flight(positions, micro_batches), strict=True)
    )


@given(pipelines(["gpipe", "1f1b", "interleaved", "pe"]))
@settings(deadline=None)
def test_without_a_split_the_bound_is_met(pipeline):
    name, positions, micro_batches = pipeline
    held = tuple(map(most_held, make_schedule(*pipeline).lanes))
    assert held == RECIPES[name].in_flight(positions, micro_batches)


@given(pipelines())
@settings(deadline=None)
def test_a_recipe_says_whether_backwards_are_split(pipeline):
    kinds = {action.kind for lane in make_schedule(*pipeline).lanes for action in lane}
    assert kinds == set("FIW" if RECIPES[pipeline[0]].splits_backward else "FB")


@given(sizes, sizes, st.sampled_from(["gpipe", "1f1b"]))
@settings(deadline=None)
def test_the_bubble_of_gpipe_and_1f1b_is_a_forward_and_a_backward_for_each_other_stage(stages, micro_batches, name):
    lanes = make_schedule(name, line(stages), micro_batches).lanes
    assert play(lanes, seconds=whole_backward).seconds == 3 * micro_batches + (stages - 1) * (1 + 2)


@given(sizes, st.integers(1, 4), st.integers(0, 20))
@settings(deadline=None)
def test_interleaved_has_the_bubble_of_one_of_its_stages(size, stages, more):
    micro_batches = size + more
    lanes = make_schedule("interleaved", positions_for("interleaved", size, stages), micro_batches).lanes
    assert play(lanes, seconds=whole_backward).seconds == 3 * stages * micro_batches + (size - 1) * (1 + 2)


@given(sizes, st.integers(1, 26))
@settings(deadline=None)
def test_interleaved_with_one_stage_at_each_position_is_1f1b(size, micro_batches):
    one = make_schedule("1f1b", line(size), micro_batches)
    assert make_schedule("interleaved", line(size), micro_batches).lanes == one.lanes


@given(sizes, st.integers(0, 12))
@settings(deadline=None)
def test_the_bubble_of_zb_h1_is_that_of_1f1b_less_two_weight_gradients(stages, more):
    micro_batches = stages + more
    forward, backward, weight = 1, 2, 1
    lanes = make_schedule("zb-h1", line(stages), micro_batches).lanes
    bubble = (stages - 1) * (forward + backward - 2 * weight)
    assert play(lanes).seconds == 3 * micro_batches + bubble


@given(sizes, st.integers(0, 12))
@settings(deadline=None)
def test_zb_h2_is_never_idle_between_a_lanes_first_action_and_its_last(stages, more):
    lanes = make_schedule("zb-h2", line(stages), 2 * stages - 1 + more).lanes
    assert not any(idle_units(lane, starts) for lane, starts in zip(lanes, play(lanes).starts, strict=True))


@given(st.integers(2, 9), st.data())
@settings(deadline=None)
def test_zb_h2_makes_do_with_fewer_micro_batches(stages, data):
    micro_batches = data.draw(st.integers(stages, 2 * stages - 2))
    lanes = make_schedule("zb-h2", line(stages), micro_batches).lanes
    played = play(lanes)
    assert played.seconds == 3 * micro_batches + stages - 1
    idle = [idle_units(lane, starts) for lane, starts in zip(lanes, played.starts, strict=True)]
    assert max(idle) == 2 * stages - 1 - micro_batches


@given(sizes, st.integers(0, 12))
@settings(deadline=None)
def test_zb_v_is_never_idle_between_a_lanes_first_action_and_its_last(size, more):
    lanes = make_schedule("zb-v", positions_for("zb-v", size, 2), 2 * size - 1 + more).lanes
    played = play(lanes)
    assert not any(idle_units(lane, starts) for lane, starts in zip(lanes, played.starts, strict=True))


@given(sizes, st.integers(1, 20))
@settings(deadline=None)
def test_pe_ends_when_the_bound_of_its_paper_says(stages, micro_batches):
    lanes = make_schedule("pe", line(stages), micro_batches).lanes
    longest = 2 * micro_batches + 4 * stages - 4
    assert play(lanes, transfer_seconds=lambda *_: 1).seconds <= longest


@pytest.mark.parametrize(
    ("name", "positions", "micro_batches", "message"),
    [
        ("zb-h3", line(2), 2, "unknown schedule 'zb-h3'; choose one of gpipe, 1f1b, interleaved, zb-h1"),
        ("1f1b", [[0, 2], [1, 3]], 2, "1f1b has one stage at each position, not 2. Use interleaved or zb-v"),
        ("zb-v", [[0], [1]], 2, "zb-v has two stages at each position, not 1"),
        ("zb-v", [[0, 2], [1, 3]], 2, "2P-1-p at position p of P, so position 0 of 2 holds 0, 3, not 0, 2"),
        ("interleaved", [[0, 3], [1, 2]], 2, "so position 0 of 2 holds 0, 2, not 0, 3"),
        ("interleaved", [[0, 2], [1]], 2, "equally many stages at each position, but these hold 2, 1"),
        ("gpipe", [[1], [0]], 2, "so position 0 of 2 holds 0, not 1"),
        ("pe", line(2), 0, "pe of 0 micro-batches on 2 positions does nothing"),
        ("zb-h1", [], 2, "zb-h1 of 2 micro-batches on 0 positions does nothing"),
        ("interleaved", [[], []], 2, "has a stage at each position, not 0"),
    ],
)
def test_what_does_not_fit_is_refused(name, positions, micro_batches, message):
    with pytest.raises(PlaitError, match=message.replace(".", r"\.")):
        make_schedule(name, positions, micro_batches)


@pytest.mark.parametrize(("name", "stages"), [("1f1b", 2), ("zb-v", 1), ("zb-v", 3), ("interleaved", 0)])
def test_positions_that_a_schedule_cannot_have_are_refused(name, stages):
    with pytest.raises(PlaitError, match=f"schedule {name} has .* not {stages}"):
        positions_for(name, 2, stages)
