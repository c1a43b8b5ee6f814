"""Timelines as data: they round-trip, add up, and open in a trace viewer."""

import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from small_runs import case, chain, star

from plait.simulate import Timeline, chrome_trace


def a_timeline() -> Timeline:
    graph = chain(3, skips=[(0, 2)], parameter=8)
    return case(graph, star(4, bandwidth=3, latency=0.25), [1, 2, 1], micro_batches=3, rows=2).run(step=0.5)


@given(
    layout=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    micro_batches=st.integers(1, 4),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
)
@settings(max_examples=25, deadline=None)
def test_a_timeline_round_trips_through_json(layout, micro_batches, schedule):
    cluster = star(sum(layout), bandwidth=3, latency=0.1)
    made = case(chain(4, parameter=8), cluster, layout, micro_batches=micro_batches, rows=3, schedule=schedule)
    timeline = made.run(step=0.5)
    assert Timeline.from_dict(json.loads(json.dumps(timeline.to_dict()))) == timeline


def test_busy_exposed_and_bubble_add_up_to_the_step():
    timeline = a_timeline()
    for rank in timeline.ranks:
        assert rank.busy + rank.exposed_communication + rank.bubble == approx(timeline.step_seconds)


def test_a_rank_computes_one_thing_at_a_time():
    timeline = a_timeline()
    for rank in range(timeline.num_ranks):
        own = sorted((s.start, s.end) for s in timeline.spans if s.rank == rank and s.lane == "compute")
        assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(own))


def test_nothing_happens_outside_the_step():
    timeline = a_timeline()
    assert all(0 <= s.start <= s.end <= timeline.step_seconds for s in timeline.spans if s.lane != "send")


def test_a_span_is_labelled_in_the_schedules_notation():
    labels = {span.label for span in a_timeline().spans}
    assert {"0F0", "2B1", "STEP s1.0", "SEND s0 m0 v0 rows 0:1 to 1"} <= labels


# The trace


def test_a_trace_has_a_complete_event_per_span_in_microseconds():
    timeline = a_timeline()
    events = [event for event in chrome_trace([timeline])["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(timeline.spans)
    for event, span in zip(events, timeline.spans, strict=True):
        assert event["ts"] == approx(span.start * 1e6)
        assert event["dur"] == approx((span.end - span.start) * 1e6)
        assert event["cat"].split(",")[0] == span.lane


def test_a_trace_says_what_a_wait_is_for():
    waits = [e for e in chrome_trace([a_timeline()])["traceEvents"] if e.get("cat", "").startswith("wait")]
    assert {event["cat"] for event in waits} == {"wait,gradient", "wait,activation"}
    assert {event["name"] for event in waits} >= {"wait for gradient: AWAIT s1.0"}


def test_a_trace_puts_two_timelines_on_one_axis_as_two_processes():
    timeline = a_timeline()
    events = chrome_trace([timeline, timeline])["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "simulated", 1: "simulated"}


def test_a_trace_names_and_sorts_a_lane_per_rank_and_kind():
    timeline = a_timeline()
    events = chrome_trace([timeline])["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert len(lanes) == 4 * timeline.num_ranks
    assert lanes[0] == "rank 0 compute"
    used = {event["tid"] for event in events if event["ph"] == "X"}
    assert used <= lanes.keys()


def test_a_trace_is_json():
    assert json.loads(json.dumps(chrome_trace([a_timeline()])))["displayTimeUnit"] == "ms"
