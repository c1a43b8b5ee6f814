"""Local search, and the layouts of several stages at a position."""

import time

from toys import chain, hosts, problem

from plait.search.groups import Groups
from plait.search.layout import Layout
from plait.search.limits import Limits
from plait.search.loads import fine_loads
from plait.search.local_search import Freedom, improved
from plait.search.orders import orders
from plait.search.score import Scorer
from plait.search.virtual import virtual_layouts

ASKED = problem(hosts(2, 2, uplink=1e9), chain([1.0] * 8, saved=1.0), 32)
GROUPS = Groups(ASKED.cluster, ASKED.costs, "ring")
LOADS = fine_loads(ASKED.graph, ASKED.costs)
SCORER = Scorer(ASKED, LOADS, GROUPS, split=False)
UNEVEN = Layout((1, 2, 3), ((0,), (1,), (2,), (3,)), (False,) * 4, 8)


def search(layout: Layout, **may: bool) -> Layout:
    return improved(layout, SCORER.downhill, Freedom(Limits(8), **may), time.perf_counter() + 5.0)


def test_boundaries_move_until_stages_are_even() -> None:
    assert search(UNEVEN, devices=False, micro_batches=False).boundaries == (2, 4, 6)


def test_what_is_fixed_stays() -> None:
    found = search(UNEVEN, devices=False, micro_batches=False)
    assert (found.groups, found.micro_batches) == (UNEVEN.groups, UNEVEN.micro_batches)


def test_pinned_boundaries_stay() -> None:
    limits = Limits(8, forced=frozenset({1}))
    found = improved(UNEVEN, SCORER.downhill, Freedom(limits), time.perf_counter() + 5.0)
    assert 1 in found.boundaries


def test_a_stage_does_not_recompute_for_nothing() -> None:
    busy = UNEVEN.changed(boundaries=(2, 4, 6), recompute=(True,) * 4)
    assert search(busy, devices=False, micro_batches=False).recompute == (False,) * 4


def test_the_result_is_never_worse_than_the_start() -> None:
    for start in (UNEVEN, Layout((), ((0, 1, 2, 3),), (False,), 4), Layout((7,), ((0,), (1, 2)), (False, False), 2)):
        found = improved(start, SCORER.downhill, Freedom(Limits(8)), time.perf_counter() + 5.0)
        assert SCORER.downhill(found) <= SCORER.downhill(start)


def test_time_that_is_up_ends_it() -> None:
    assert improved(UNEVEN, SCORER.downhill, Freedom(Limits(8)), 0.0) == UNEVEN


def test_two_stages_at_each_position_lie_in_turn_and_in_a_v() -> None:
    even = UNEVEN.changed(boundaries=(2, 4, 6))
    around, back = virtual_layouts(even, ASKED, GROUPS, LOADS, Limits(8), None)
    assert around.groups == ((0,), (1,), (2,), (3,)) * 2
    assert back.groups == ((0,), (1,), (2,), (3,), (3,), (2,), (1,), (0,))
    assert around.boundaries == back.boundaries == (1, 2, 3, 4, 5, 6, 7)


def test_a_schedule_that_has_one_stage_at_each_position_has_no_such_layout() -> None:
    assert virtual_layouts(UNEVEN, ASKED, GROUPS, LOADS, Limits(8), "gpipe") == []


def test_orders_hold_no_more_than_memory_has_room_for() -> None:
    small = problem(hosts(1, 1, memory=100), chain([1.0] * 4, saved=5.0), 16)
    groups = Groups(small.cluster, small.costs, "ring")
    scorer = Scorer(small, fine_loads(small.graph, small.costs), groups, split=True)
    layout = Layout((2,), ((0,), (1,)), (False, False), 8)
    room = scorer.room(layout, [0, 0])
    assert 1 < room[0] < 8
    for _, plan in orders(layout, small, groups, scorer, None):
        for place, lane in enumerate(plan.lanes):
            held = most = 0
            for action in lane.split(","):
                held += ("F" in action) - ("B" in action or "W" in action)
                most = max(most, held)
            assert most <= room[place]
