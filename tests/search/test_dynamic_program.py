"""The dynamic program against every partition, replication and mapping there is on an order of devices."""

import math
from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import chain, hosts, problem

from plait.search.groups import Groups
from plait.search.layout import Layout
from plait.search.limits import Limits
from plait.search.loads import coarse_loads, fine_loads
from plait.search.prm import Asked, shapes
from plait.search.score import Scorer

MICRO_BATCHES = 4


def compositions(total: int) -> list[tuple[int, ...]]:
    """All ways to part `total` into positive numbers in order."""
    return [
        tuple(b - a for a, b in pairwise((0, *inner, total)))
        for count in range(total)
        for inner in combinations(range(1, total), count)
    ]


def spans(parts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Devices 0, 1, 2, … in groups of these sizes."""
    return tuple(tuple(range(a, b)) for a, b in pairwise(accumulate(parts, initial=0)))


@given(
    st.lists(st.floats(0.1, 1.0), min_size=2, max_size=5),
    st.lists(st.integers(1, 2), min_size=1, max_size=2),
    st.integers(0, 10**7),
    st.data(),
)
@settings(max_examples=40, deadline=None)
def test_its_bottleneck_is_the_least_of_all(
    seconds: list[float], sizes: list[int], parameter: int, data: st.DataObject
) -> None:
    crossing = [data.draw(st.integers(1, 10**7)) for _ in seconds[1:]]
    asked = problem(hosts(*sizes), chain(seconds, crossing=crossing, parameter=parameter), 16)
    groups = Groups(asked.cluster, asked.costs, "ring")
    loads = fine_loads(asked.graph, asked.costs)
    scorer = Scorer(asked, loads, groups, split=False)
    order = list(range(sum(sizes)))

    def bottleneck(boundaries: tuple[int, ...], parts: tuple[int, ...]) -> float:
        times = scorer.times(Layout(boundaries, spans(parts), (False,) * len(parts), MICRO_BATCHES))
        if times is None:
            return math.inf
        stages = [s.forward + s.input + s.weight + s.after / MICRO_BATCHES for s in times.stages]
        return max([*stages, *times.over, *times.under])

    best = min(
        bottleneck(inner, parts)
        for used in range(1, len(order) + 1)
        for parts in compositions(used)
        for inner in combinations(range(1, len(seconds)), len(parts) - 1)
    )
    found = shapes(loads, asked.costs, groups, order, Asked(MICRO_BATCHES, 4), Limits(len(seconds)))
    least = min(
        bottleneck(shape.boundaries, tuple(map(len, shape.groups))) for shape in found if shape.groups[0][0] == 0
    )
    assert least == pytest.approx(best, rel=1e-6)


def test_a_stage_that_does_not_fit_recomputes() -> None:
    made = chain([1.0, 1.0], saved=30.0)
    asked = problem(hosts(1, 1, memory=200), made, 16)
    groups = Groups(asked.cluster, asked.costs, "ring")
    found = shapes(fine_loads(*made), asked.costs, groups, [0, 1], Asked(4, 4, num_stages=2), Limits(2))
    assert [shape.recompute for shape in found] == [(True, False)]  # two micro-batches of 4 x 30 bytes are too many


def test_where_nothing_fits_there_is_no_shape() -> None:
    made = chain([1.0, 1.0], saved=300.0)
    asked = problem(hosts(1, 1, memory=200), made, 16)
    groups = Groups(asked.cluster, asked.costs, "ring")
    assert shapes(fine_loads(*made), asked.costs, groups, [0, 1], Asked(4, 4), Limits(2)) == []


def test_coarse_edges_lie_where_little_crosses() -> None:
    crossing = [100 if n % 4 else 1 for n in range(1, 40)]
    fine = fine_loads(*chain([1.0] * 40, crossing=crossing))
    coarse = coarse_loads(fine, 12)
    assert len(coarse.edges) <= 12
    assert sum(edge % 4 == 0 for edge in coarse.edges.tolist()) >= 10
    assert coarse.trained_bytes[-1] == fine.trained_bytes[-1]
