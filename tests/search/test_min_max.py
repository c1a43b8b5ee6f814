"""Contiguous partitions with the least bottleneck, against all there are; blocks merged from atoms."""

from itertools import combinations, pairwise

import numpy as np
from baseline_chains import hosts, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.search.baselines.blocks import blocks_of
from plait.search.baselines.min_max import min_max
from plait.search.partition import crossing_bytes


@st.composite
def stage_loads(draw: st.DrawFn) -> list[np.ndarray]:
    """A matrix per stage, with stages that cannot be among them."""
    size, stages = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    entry = st.integers(1, 50) | st.just(np.inf)
    loads = []
    for _ in range(stages):
        load = np.full((size + 1, size + 1), np.inf)
        for start in range(size):
            for end in range(start + 1, size + 1):
                load[start, end] = draw(entry)
        loads.append(load)
    return loads


@given(stage_loads())
@settings(max_examples=60, deadline=None)
def test_no_partition_has_a_lower_bottleneck(loads: list[np.ndarray]) -> None:
    size = len(loads[0]) - 1
    for stages, (bottleneck, boundaries) in enumerate(min_max(loads), start=1):

        def worst(cuts: tuple[int, ...]) -> float:
            return max(load[a, b] for load, (a, b) in zip(loads, pairwise((0, *cuts, size)), strict=False))

        everything = list(combinations(range(1, size), stages - 1))
        assert bottleneck == min(map(worst, everything), default=np.inf)
        if np.isfinite(bottleneck):
            assert worst(tuple(boundaries)) == bottleneck


def test_merged_blocks_are_about_equal_and_parted_where_few_bytes_cross() -> None:
    asked = problem(hosts(2), [0.01] * 40, sent=[1 if n % 5 == 4 else 1000 for n in range(40)])
    merged = blocks_of(asked, 8)
    assert merged.edges.tolist() == list(range(0, 41, 5))
    assert merged.crossing(3).tolist() == crossing_bytes(asked.graph, 3)[merged.edges].tolist()


def test_merging_keeps_all_there_is() -> None:
    asked = problem(hosts(2), [0.01 * (n % 7 + 1) for n in range(50)], weights=list(range(50)))
    whole, merged = blocks_of(asked), blocks_of(asked, 9)
    assert len(merged) <= 9
    assert merged.weights[-1] == whole.weights[-1] == sum(range(50))
    assert merged.seconds("v100", 4)[-1] == whole.seconds("v100", 4)[-1]


def test_a_short_chain_is_not_merged() -> None:
    assert blocks_of(problem(hosts(2), [0.01] * 5), 8).edges.tolist() == [0, 1, 2, 3, 4, 5]
