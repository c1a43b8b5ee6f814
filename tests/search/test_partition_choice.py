"""The partition against all there are, with links that matter; and the bound against whatever is planned."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planning import chain, cluster_with_cores

from plait.cluster import local_cluster
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.errors import PlaitError
from plait.graph import Atom, Graph, Parameter, Value
from plait.search import Wishes, find_plans
from plait.search.partition import SLACK, balanced_boundaries, crossing_bytes

BANDWIDTH = 1000.0


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, Costs]:
    """Atoms with costs of their own, and values that may skip over several of them."""
    size = draw(st.integers(2, 8))
    values = []
    for producer in range(size - 1):
        consumers = sorted({producer + 1, draw(st.integers(producer + 1, size - 1))})
        width = draw(st.integers(1, 60))
        values.append(Value(f"n{producer}", producer, tuple(consumers), (1, width), "float32", 0, True))
    graph = Graph(
        "random",
        tuple(Atom(f"a{i}", "", (f"n{i}",)) for i in range(size)),
        tuple(values),
        tuple(Parameter(f"p{i}", (10,), "float32", (i,), True, False) for i in range(size)),
    )
    seconds = st.floats(0.01, 1.0)
    atoms = tuple(AtomCost(draw(seconds) / 10, draw(seconds), 0.0, draw(seconds), 0.0, 10.0) for _ in range(size))
    return graph, Costs(graph.fingerprint, {"cpu": atoms}, {"cpu": OptimizerCost(2.0, 0.0, 0.0)}, {})


@given(graphs(), st.lists(st.integers(1, 2), min_size=1, max_size=4), st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_partition_is_the_least_talkative_of_the_best(
    made: tuple[Graph, Costs], replicas: list[int], rows: int
) -> None:
    graph, costs = made
    size, replicas = len(graph.atoms), replicas[: len(graph.atoms)]
    devices, first = [], 0
    for count in replicas:
        devices.append(list(range(first, first + count)))
        first += count
    cluster = local_cluster(first, bandwidth=BANDWIDTH)

    def bottleneck(boundaries: tuple[int, ...]) -> float:
        loads = []
        for stage, (start, end) in enumerate(pairwise([0, *boundaries, size])):
            own = rows / replicas[stage]
            loads += [
                sum(
                    a.forward_fixed + (a.forward_per_row + a.backward_per_row) * own
                    for a in costs.atoms["cpu"][start:end]
                )
            ]
            loads += [2 * graph.boundary_bytes(start, rows) / BANDWIDTH] if start else []
        return max(loads)

    def sent(boundaries: tuple[int, ...]) -> int:
        return sum(graph.boundary_bytes(boundary, rows) for boundary in boundaries)

    everything = list(combinations(range(1, size), len(replicas) - 1))
    limit = min(map(bottleneck, everything)) * (1 + SLACK)
    found = tuple(balanced_boundaries(graph, costs, cluster, devices, rows))
    assert bottleneck(found) <= limit * (1 + 1e-9)
    assert sent(found) <= min(sent(b) for b in everything if bottleneck(b) <= limit * (1 - 1e-9))


@given(graphs(), st.integers(1, 8))
def test_crossing_bytes_are_the_graphs_boundary_bytes(made: tuple[Graph, Costs], rows: int) -> None:
    graph, _ = made
    crossing = crossing_bytes(graph, rows)
    assert [graph.boundary_bytes(p, rows) for p in range(len(graph.atoms))] == crossing[:-1].tolist()


@given(graphs(), st.integers(1, 4), st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_no_plan_is_faster_than_the_bound(made: tuple[Graph, Costs], num_devices: int, batch_size: int) -> None:
    graph, costs = made
    try:
        answer = find_plans(graph, costs, local_cluster(num_devices), batch_size=batch_size)
    except PlaitError as error:
        assert "batch size" in str(error)  # nothing but too few rows can be in the way here
        return
    times = [candidate.timeline.step_seconds for candidate in answer.candidates]
    assert times == sorted(times)
    assert times[0] >= answer.bound_seconds * (1 - 1e-9)
    assert all(
        candidate.plan.predicted_seconds == time for candidate, time in zip(answer.candidates, times, strict=True)
    )


def test_plans_that_are_offered_fit() -> None:
    graph, costs = chain([0.1] * 8)
    memory = local_cluster(4).devices[0].memory_bytes
    heavy = tuple(
        AtomCost(0.0, 0.1, 0.0, 0.1, 0.0, memory / 40) for _ in graph.atoms
    )  # a whole batch of 16 is too much
    costs = Costs(graph.fingerprint, {"cpu": heavy}, costs.optimizer)
    answer = find_plans(graph, costs, cluster_with_cores(4), batch_size=16)
    for name, why in answer.rejected:
        assert " m" in name, "a candidate's name tells its layout and micro-batches"
        assert "on local/cpu" in why and "too little" in why
    assert all(use.peak <= memory for candidate in answer.candidates for use in candidate.memory), (
        "a plan that is offered fits"
    )


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (Wishes(stages=3, replicas=(2, 2)), "3 stages were asked for, but replicas are given for 2"),
        (Wishes(replicas=(3, 2)), r"need 5 devices \(3\+2\), but the cluster has 4"),
        (Wishes(stages=5), "5 stages were asked for, but the cluster has 4 devices"),
        (Wishes(schedule="zigzag"), "unknown schedule 'zigzag'"),
        (Wishes(micro_batches=32), "smaller than 32 micro-batches"),
    ],
    ids=["two answers", "replicas", "stages", "schedule", "micro-batches"],
)
def test_wishes_that_cannot_be_granted_are_told(wishes: Wishes, message: str) -> None:
    graph, costs = chain([0.1] * 8)
    with pytest.raises(PlaitError, match=message):
        find_plans(graph, costs, cluster_with_cores(4), batch_size=16, wishes=wishes)
