"""The list scheduler: orders that can run, within limits, as good as those made by hand where those are best."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_strategies import line, most_held, pipelines

from plait.errors import PlaitError
from plait.schedule import Schedule, check_schedule, make_schedule, sweep
from plait.schedule.clock import play
from plait.schedule.sweep import no_time

sizes = st.integers(1, 8)


@st.composite
def placements(draw):
    """Stages on positions in any way at all."""
    stages = draw(st.integers(1, 10))
    holders = draw(st.lists(st.integers(0, 3), min_size=stages, max_size=stages))
    return [found for p in range(4) if (found := [s for s in range(stages) if holders[s] == p])]


@given(placements(), st.integers(1, 12), st.booleans(), st.booleans(), st.integers(0, 6), st.randoms())
@settings(deadline=None)
def test_any_placement_any_times_and_any_limit_give_an_order_that_runs_and_holds_no_more(
    positions, micro_batches, split, full_duplex, spare, numbers
):
    limits = [len(stages) + spare for stages in positions]
    times = {(s, kind): numbers.choice([0, 1, 2.5]) for s in range(10) for kind in "FBIW"}
    transfers = {(s, back): numbers.choice([0, 0.5, 3]) for s in range(10) for back in (False, True)}
    swept = sweep(
        positions,
        micro_batches,
        seconds=lambda stage, kind: times[stage, kind],
        transfer_seconds=lambda boundary, backward: transfers[boundary, backward],
        limits=limits,
        split=split,
        full_duplex=full_duplex,
    )
    check_schedule(Schedule("swept", swept.lanes), positions, micro_batches)
    assert all(most_held(lane) <= limit for lane, limit in zip(swept.lanes, limits, strict=True))


@given(sizes, st.integers(1, 20))
@settings(deadline=None)
def test_with_the_memory_of_1f1b_and_free_transfers_the_sweep_is_1f1b(stages, micro_batches):
    limits = [stages - position for position in range(stages)]
    swept = sweep(line(stages), micro_batches, transfer_seconds=no_time, limits=limits)
    assert swept.lanes == make_schedule("1f1b", line(stages), micro_batches).lanes


@given(pipelines(["zb-h1"]), st.booleans())
@settings(deadline=None)
def test_the_makespan_is_when_the_clock_says_the_lanes_end(pipeline, split):
    _, positions, micro_batches = pipeline
    swept = sweep(positions, micro_batches, transfer_seconds=no_time, split=split)
    assert play(swept.lanes).seconds == swept.seconds


@given(sizes, st.integers(1, 20))
@settings(deadline=None)
def test_more_in_flight_than_pe_allows_makes_nothing_faster(stages, micro_batches):
    limits = [2 * (stages - position) - 1 for position in range(stages)]
    limited = sweep(line(stages), micro_batches, limits=limits, full_duplex=False)
    assert limited.lanes == make_schedule("pe", line(stages), micro_batches).lanes
    assert limited.seconds == sweep(line(stages), micro_batches, full_duplex=False).seconds
    assert limited.seconds == 2 * micro_batches + 4 * stages - 4  # a pipeline of 2S-1 resources


@given(st.integers(2, 8), st.integers(1, 20))
@settings(deadline=None)
def test_fewer_in_flight_than_pe_allows_is_slower_once_there_are_enough_micro_batches(stages, more):
    micro_batches = 4 * stages + more
    limits = [2 * (stages - position) - 1 for position in range(stages)]
    limits[0] -= 1
    tight = sweep(line(stages), micro_batches, limits=limits, full_duplex=False)
    assert tight.seconds > 2 * micro_batches + 4 * stages - 4


def test_two_directions_of_one_channel_take_turns_unless_it_is_full_duplex():
    times = {"seconds": lambda stage, kind: 1, "transfer_seconds": lambda boundary, backward: 3}
    assert sweep(line(2), 10, **times, full_duplex=False).seconds > sweep(line(2), 10, **times).seconds


def test_interleaved_stages_share_the_channel_between_their_positions():
    # Position 0 sends to position 1 from stage 0 and from stage 2: 3 units each, for each of 10 micro-batches.
    swept = sweep([[0, 2], [1, 3]], 10, transfer_seconds=lambda boundary, backward: 0 if backward else 3)
    assert swept.seconds >= 2 * 3 * 10


def test_a_slow_link_brings_more_forwards_ahead_than_1f1b_has():
    swept = sweep(line(2), 8, transfer_seconds=lambda boundary, backward: 2)
    assert most_held(swept.lanes[0]) > 2
    fixed = play(make_schedule("1f1b", line(2), 8).lanes, transfer_seconds=lambda boundary, backward: 2)
    assert swept.seconds < fixed.seconds


def test_a_limit_that_no_micro_batch_gets_through_is_refused():
    with pytest.raises(PlaitError, match="position 1 may hold 1 micro-batches in flight, but its 2 stages"):
        sweep([[0, 3], [1, 2]], 4, limits=[2, 1])


def test_the_order_does_not_depend_on_when_it_is_made():
    times = [random.Random(7).random() for _ in range(8)]  # a seed: the same numbers each time
    orders = {sweep(line(8), 20, seconds=lambda stage, kind: times[stage]) for _ in range(3)}
    assert len(orders) == 1
