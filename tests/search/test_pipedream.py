"""PipeDream's dynamic program against every way to cut and replicate; its levels."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
from baseline_chains import hosts, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.search.baselines import BASELINES
from plait.search.baselines.blocks import between, blocks_of
from plait.search.baselines.pipedream import Level, levels
from plait.search.baselines.setting import Setting


@st.composite
def one_level(draw: st.DrawFn) -> tuple[Level, np.ndarray, np.ndarray]:
    size = draw(st.integers(1, 5))

    def prefix(numbers: st.SearchStrategy[int]) -> np.ndarray:
        return np.cumsum([0.0, *draw(st.lists(numbers, min_size=size, max_size=size))])

    compute, weights = prefix(st.integers(1, 20)), prefix(st.integers(0, 40))
    sent = np.array([0.0, *draw(st.lists(st.integers(0, 30), min_size=size, max_size=size))])
    allowed = np.full((size + 1, size + 1), True)
    units, most = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return Level(between(compute), between(weights), sent, allowed, 2.0, units, most), compute, weights


def ways(blocks: int, devices: int) -> Iterator[list[tuple[int, int, int]]]:
    """Every list of stages (start, end, replicas) that uses all devices."""
    for stages in range(1, min(blocks, devices) + 1):
        for cuts in combinations(range(1, blocks), stages - 1):
            for parts in combinations(range(1, devices), stages - 1):
                replicas = [b - a for a, b in pairwise((0, *parts, devices))]
                yield [(a, b, m) for (a, b), m in zip(pairwise((0, *cuts, blocks)), replicas, strict=True)]


@given(one_level())
@settings(max_examples=80, deadline=None)
def test_no_way_to_cut_and_replicate_has_a_lower_bottleneck(made: tuple[Level, np.ndarray, np.ndarray]) -> None:
    level, compute, weights = made
    blocks = len(compute) - 1

    def bottleneck(stages: list[tuple[int, int, int]]) -> float:
        times = []
        for start, end, m in stages:
            if m > 1 and m > level.most_replicas:
                return float("inf")
            synced = 4 * (m - 1) * (weights[end] - weights[start]) / (m * 2.0)
            times.append((compute[end] - compute[start] + synced) / m)
            times += [2 * level.sent[start] / (2.0 * m)] if start else []
        return max(times)

    best, _, _ = level.solve()
    for devices in range(1, level.units + 1):
        least = min((bottleneck(way) for way in ways(blocks, devices)), default=float("inf"))
        assert best[devices, -1] == pytest.approx(least)
    chosen = level.best_stages(0, blocks)
    assert [start for start, _, _ in chosen] == [0, *(end for _, end, _ in chosen[:-1])]
    assert bottleneck(list(chosen)) == pytest.approx(best[:, -1].min())


def test_equal_hosts_have_two_levels_and_others_one() -> None:
    for sizes, units in (((2, 2, 2), [2, 3]), ((4,), [4]), ((2, 1), [3]), ((1, 1), [2])):
        asked = problem(hosts(*sizes), [0.01] * 4)
        found = levels(Setting(asked), blocks_of(asked), 16.0)
        assert [level.units for level in found] == units


def test_a_host_takes_what_its_best_pipeline_takes() -> None:
    asked = problem(hosts(2, 2), [0.01] * 4, weights=10**9)
    inside, across = levels(Setting(asked), blocks_of(asked), 16.0)
    for first in range(4):
        assert across.alone[first, 4] == inside.solve(first)[0][:, 4].min()


def test_layers_that_send_much_are_replicated_and_heavy_ones_are_not() -> None:
    sent, weights = [10**9, 10**9, 10, 10], [10, 10, 10, 10**8]
    asked = problem(hosts(4), [0.03] * 4, weights=weights, sent=sent, batch_size=64, micro_batches=8)
    plan = BASELINES["pipedream"](asked)
    assert [(stage.end, stage.replicas) for stage in plan.stages] == [(3, 3), (4, 1)]


def test_a_pipeline_inside_hosts_is_replicated_over_them() -> None:
    asked = problem(
        hosts(2, 2, across="10 MB/s"), [0.1, 0.1], weights=10**6, sent=10**6, batch_size=64, micro_batches=8
    )
    plan = BASELINES["pipedream"](asked)
    assert [stage.devices for stage in plan.stages] == [(0, 2), (1, 3)]
