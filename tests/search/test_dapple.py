"""DAPPLE's latency by its definition, and its search against all placements of few stages."""

from collections.abc import Iterator

import numpy as np
import pytest
from baseline_chains import hosts, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.cost import ring_all_reduce_seconds
from plait.search.baselines.blocks import blocks_of
from plait.search.baselines.dapple_search import Search, latency
from plait.search.baselines.placement import placements
from plait.search.baselines.setting import Setting
from plait.search.problem import Problem

BATCH, COUNT = 16, 4


def by_definition(forward: list[float], backward: list[float], synced: list[float], micro_batches: int) -> float:
    """Warm-up, steady and ending around the pivot, one column at a time."""
    pivot = len(forward) - 1
    for column in reversed(range(pivot)):
        between = sum(forward[column + 1 : pivot]) + sum(backward[column + 1 : pivot])
        steady = (micro_batches - 1) * (forward[pivot] + backward[pivot])
        if (micro_batches - 1) * (forward[column] + backward[column]) > steady + between:
            pivot = column
    ends = []
    for column in range(len(forward)):
        if column <= pivot:
            ends.append(synced[column] + sum(backward[column : pivot + 1]))
        else:
            ends.append(synced[column] - sum(backward[pivot + 1 : column]))
    steady = (micro_batches - 1) * (forward[pivot] + backward[pivot])
    return sum(forward[: pivot + 1]) + steady + max(ends)


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 3), min_size=1, max_size=7), st.integers(1, 9))
def test_latency_is_as_defined(columns: list[tuple[int, int, int]], micro_batches: int) -> None:
    forward, backward, synced = (list(map(float, values)) for values in zip(*columns, strict=True))
    tables = (np.array(values)[:, None] for values in (forward, backward, synced))
    assert latency(*tables, micro_batches)[0] == pytest.approx(by_definition(forward, backward, synced, micro_batches))


def test_columns_that_are_not_there_change_nothing() -> None:
    one = np.array([[3.0], [1.0], [2.0]])
    padded = np.vstack([np.zeros((4, 1)), one])
    assert latency(padded, padded, padded, 5) == latency(one, one, one, 5)


@st.composite
def asked_of_hosts(draw: st.DrawFn) -> Problem:
    sizes = draw(st.sampled_from([(2, 2), (3,), (2, 1), (1, 1, 1)]))
    length = draw(st.integers(2, 5))
    number = st.integers(1, 10**7)
    return problem(
        hosts(*sizes, across=draw(st.sampled_from(["10 MB/s", "1 GB/s"]))),
        draw(st.lists(st.floats(1e-3, 0.1), min_size=length, max_size=length)),
        batch_size=BATCH,
        weights=draw(st.lists(number, min_size=length, max_size=length)),
        sent=draw(st.lists(number, min_size=length, max_size=length)),
    )


def seconds(asked: Problem, split: tuple[tuple[int, tuple[int, ...]], ...]) -> float:
    """The latency of a split from the chain itself."""
    cluster, graph = asked.cluster, asked.graph
    costs, rows = asked.costs.atoms["v100"], BATCH // COUNT
    inside = 8e9 if any(len(cluster.devices_of(host.name)) > 1 for host in cluster.hosts) else None
    across = min((link.bandwidth for link in cluster.links if link.b == "switch"), default=None)
    if len(cluster.hosts) == 1:
        across = inside
    forward, backward, synced = [], [], []
    for number, (start, devices) in enumerate(split):
        end = split[number + 1][0] if number + 1 < len(split) else len(costs)
        own = {cluster.devices[device].host for device in devices}
        if number:
            before = split[number - 1][1]
            others = {cluster.devices[device].host for device in before}
            together = own == others and len(own) == 1
            bandwidth = inside if together else across
            links = min(len(devices), len(before)) if together else min(len(own), len(others))
            channel = graph.boundary_bytes(start, rows) / (bandwidth * links)
            forward, backward, synced = [*forward, channel], [*backward, channel], [*synced, 0.0]
        own_rows = -(-rows // len(devices))
        forward.append(sum(cost.forward_per_row for cost in costs[start:end]) * own_rows)
        backward.append(sum(cost.backward_per_row for cost in costs[start:end]) * own_rows)
        weights = sum(parameter.num_bytes for parameter in graph.parameters[start:end])
        ring = inside if len(own) == 1 else across
        synced.append(ring_all_reduce_seconds(weights, len(devices), ring or 1.0, 0.0))
    return by_definition(forward, backward, synced, COUNT)


def two_stages(asked: Problem) -> Iterator[tuple[tuple[int, tuple[int, ...]], ...]]:
    """Every split in at most two stages, with devices fresh-first (as good as any for a first stage)."""
    everything = tuple(range(len(asked.cluster.devices)))
    yield ((0, everything),)
    for cut in range(1, len(asked.graph.atoms)):
        for count in range(1, len(everything)):
            yield (0, everything[:count]), (cut, everything[count:])


@given(asked_of_hosts())
@settings(max_examples=60, deadline=None)
def test_what_is_found_takes_as_long_as_it_says_and_no_longer_than_two_stages(asked: Problem) -> None:
    found = Search(Setting(asked), blocks_of(asked), COUNT).best_splits()
    time, split = found[0]
    assert time == min(other for other, _ in found)
    assert time == pytest.approx(seconds(asked, split))
    assert time <= min(seconds(asked, other) for other in two_stages(asked)) * (1 + 1e-9)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_placements_take_free_devices_in_their_number(sizes: list[int], data: st.DataObject) -> None:
    used = tuple(data.draw(st.integers(0, size)) for size in sizes)
    free = sum(sizes) - sum(used)
    count = data.draw(st.integers(0, free))
    for taken in placements(tuple(sizes), used, count):
        assert sum(taken) == count
        assert all(0 <= more <= size - before for more, size, before in zip(taken, sizes, used, strict=True))


def test_scattering_begins_on_all_hosts() -> None:
    assert placements((4, 4), (0, 0), 2) == [(2, 0), (1, 1)]
