"""HetPipe's virtual workers and their common partition."""

from itertools import combinations, pairwise

import pytest
from baseline_chains import hosts, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.search.baselines import BASELINES
from plait.search.baselines.hetpipe import virtual_workers


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_workers_share_out_all_devices_equally(sizes: list[int]) -> None:
    devices = iter(range(sum(sizes)))
    cluster = tuple(tuple(next(devices) for _ in range(size)) for size in sizes)
    for workers in virtual_workers(cluster):
        assert sorted(device for worker in workers for device in worker) == list(range(sum(sizes)))
        assert len({len(worker) for worker in workers}) == 1


def test_a_worker_is_a_host_or_takes_from_all_hosts() -> None:
    found = virtual_workers(((0, 1, 2, 3), (4, 5, 6, 7)))
    assert ((0, 1, 2, 3), (4, 5, 6, 7)) in found
    assert ((0, 4), (1, 5), (2, 6), (3, 7)) in found


def test_faster_replicas_take_more_rows() -> None:
    asked = problem(hosts(2, 2, kinds=["v100", "1080ti"], across="8 GB/s"), [0.01] * 4, batch_size=24, weights=10)
    plan = BASELINES["hetpipe"](asked)
    if plan.layout() == "2x2" and plan.stages[0].devices == (0, 2):
        fast, slow = plan.stages[0].shares
        assert fast == pytest.approx(2 * slow)
    else:
        pytest.fail(f"hosts as workers share stages evenly here, but the plan is {plan.layout()}")


@given(st.lists(st.floats(0.01, 0.1), min_size=4, max_size=7))
@settings(max_examples=25, deadline=None)
def test_no_partition_of_a_worker_has_a_shorter_longest_stage(seconds: list[float]) -> None:
    asked = problem(hosts(1, 1, 1, kinds=["v100", "1080ti", "v100"], across="8 GB/s"), seconds, weights=10)
    plan = BASELINES["hetpipe"](asked)
    slower = (1.0, 2.0, 1.0)

    def longest(edges: tuple[int, ...]) -> float:
        return max(factor * sum(seconds[a:b]) for factor, (a, b) in zip(slower, pairwise(edges), strict=True))

    assert [stage.devices for stage in plan.stages] == [(0,), (1,), (2,)]
    own = longest((0, *(stage.end for stage in plan.stages)))
    best = min(longest((0, *cuts, len(seconds))) for cuts in combinations(range(1, len(seconds)), 2))
    assert own == pytest.approx(best, rel=1e-6)
