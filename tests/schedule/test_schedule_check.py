"""The static check of a schedule: whatever is wrong is found, and named with its lane and its rule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_strategies import line, pipelines

from plait.errors import PlaitError
from plait.schedule import Schedule, check_schedule, make_schedule, parse_action

TWO = line(2)


def check(*lanes, positions=TWO, micro_batches=1):
    actions = tuple(tuple(map(parse_action, lane.split())) for lane in lanes)
    check_schedule(Schedule("mine", actions), positions, micro_batches)


def test_whole_and_split_backwards_may_be_mixed():
    check("0F0 0F1 0I0 0B1 0W0", "1F0 1B0 1F1 1I1 1W1", micro_batches=2)


@pytest.mark.parametrize(
    ("lanes", "message"),
    [
        (["0F0 0B0"], "1 lanes for 2 positions"),
        (["0F0 1F0 0B0", "1B0"], r"lane 0, action 1 \(1F0\): stage 1 is at position 1"),
        (["0F0 2F0", "1F0 1B0"], r"lane 0, action 1 \(2F0\): no stage 2 exists"),
        (["0F0 0F1", "1F0"], r"lane 0, action 1 \(0F1\): there are 1 micro-batches"),
        (["0F0 0F0 0B0", "1F0 1B0"], r"lane 0, action 1 \(0F0\): this forward has run before"),
        (["0F0 0B0 0F0", "1F0 1B0"], r"lane 0, action 2 \(0F0\): this forward has run before"),
        (["0B0 0F0", "1F0 1B0"], r"lane 0, action 0 \(0B0\): 0F0 must come before it"),
        (["0F0 0B0", "1F0 1W0 1I0"], r"lane 1, action 1 \(1W0\): 1I0 must come before it"),
        (["0F0 0B0 0B0", "1F0 1B0"], r"lane 0, action 2 \(0B0\): this backward has run before"),
        (["0F0 0B0 0W0", "1F0 1B0"], r"lane 0, action 2 \(0W0\): this backward has run before"),
        (["0F0 0I0 0I0", "1F0 1B0"], r"lane 0, action 2 \(0I0\): this backward has run before"),
        (["0F0 0I0 0B0", "1F0 1B0"], r"lane 0, action 2 \(0B0\): 0I0 has run before, so what is left .* is 0W0"),
        (["0B0", "1F0 1B0"], r"0F0 must come before"),
        (["0F0", "1F0 1B0"], "lane 0 lacks 0B0"),
        (["0F0 0B0", "1F0 1I0"], "lane 1 lacks 1W0"),
        (["0F0 0B0", ""], "lane 1 lacks 1F0"),
    ],
)
def test_one_wrong_thing_is_named(lanes, message):
    with pytest.raises(PlaitError, match=message):
        check(*lanes)


def test_forwards_of_a_stage_come_in_the_order_of_the_micro_batches():
    with pytest.raises(PlaitError, match=r"lane 1, action 0 \(1F1\): forwards of a stage .* so 1F0 is due"):
        check("0F0 0F1 0B0 0B1", "1F1 1B1 1F0 1B0", micro_batches=2)


def test_backwards_may_come_in_any_order():
    check("0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0", micro_batches=2)


def test_a_circle_of_waits_is_shown_with_every_lane_in_it():
    with pytest.raises(PlaitError) as error:
        check("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", micro_batches=2)
    assert "0B0 of lane 0 waits for 1B0, which comes after 1F1 in lane 1" in str(error.value)
    assert "1F1 of lane 1 waits for 0F1, which comes after 0B0 in lane 0" in str(error.value)


def test_a_lane_may_not_wait_for_itself():
    with pytest.raises(PlaitError, match="1F0 of lane 0 waits for 0F0, which comes after 1F0 in lane 0"):
        check("1F0 0F0 1B0 0B0", positions=[[0, 1]])


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([[0], [0]], "stage 0 is at positions 0 and 1"),
        ([[0], [2]], "stage 1 is at no position, but stage 2 is"),
        ([[0], []], "position 1 holds no stage"),
    ],
)
def test_positions_hold_every_stage_once(positions, message):
    with pytest.raises(PlaitError, match=message):
        check("0F0 0B0", "1F0 1B0", positions=positions)


@given(pipelines(), st.data())
@settings(deadline=None)
def test_an_action_more_or_less_is_always_found(pipeline, data):
    name, positions, micro_batches = pipeline
    lanes = [list(lane) for lane in make_schedule(*pipeline).lanes]
    lane = data.draw(st.sampled_from(lanes))
    index = data.draw(st.integers(0, len(lane) - 1))
    if data.draw(st.booleans()):
        del lane[index]
    else:
        lane.insert(data.draw(st.integers(0, len(lane))), lane[index])
    with pytest.raises(PlaitError):
        check_schedule(Schedule(name, tuple(map(tuple, lanes))), positions, micro_batches)


@given(pipelines(), st.randoms())
@settings(deadline=None)
def test_a_shuffled_lane_is_found_or_can_run(pipeline, numbers):
    """Against a slow check of the same rules: any action that can go next goes, until none can."""
    name, positions, micro_batches = pipeline
    lanes = [list(lane) for lane in make_schedule(*pipeline).lanes]
    for lane in lanes:
        index = numbers.randrange(len(lane))
        other = min(len(lane) - 1, index + numbers.randint(0, 2))
        lane[index], lane[other] = lane[other], lane[index]
    schedule = Schedule(name, tuple(map(tuple, lanes)))
    if _runs(lanes, sum(map(len, positions))):
        check_schedule(schedule, positions, micro_batches)
    else:
        with pytest.raises(PlaitError):
            check_schedule(schedule, positions, micro_batches)


def _runs(lanes, num_stages):
    lanes = [list(reversed(lane)) for lane in lanes]
    done = set()

    def can(action):
        stage, kind, m = action
        backward_of = {(s, m) for s, k, m in done if k in "BI"}
        if kind == "F":
            return (not stage or (stage - 1, "F", m) in done) and (not m or (stage, "F", m - 1) in done)
        if kind == "W":
            return (stage, "I", m) in done
        return (stage, "F", m) in done and (stage == num_stages - 1 or (stage + 1, m) in backward_of)

    progress = True
    while progress:
        progress = False
        for lane in lanes:
            while lane and can(lane[-1]):
                done.add(tuple(lane.pop()))
                progress = True
    return not any(lanes)
