"""Partition and ranking."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.cluster import Aggregator, Cluster, local_cluster
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.errors import PlaitError
from plait.graph import Atom, Graph, Parameter, Value
from plait.search import Wishes, find_plans
from plait.search.partition import SLACK, balanced_boundaries, crossing_bytes


def chain(seconds: list[float], row_bytes: int = 4) -> tuple[Graph, Costs]:
    """A chain of atoms that take these seconds per row, a third of them forward."""
    size = len(seconds)
    graph = Graph(
        "chain",
        tuple(Atom(f"a{i}", "", (f"n{i}",)) for i in range(size)),
        tuple(Value(f"n{i}", i, (i + 1,), (1, row_bytes // 4), "float32", 0, True) for i in range(size - 1)),
        tuple(Parameter(f"p{i}", (10,), "float32", (i,), True, False) for i in range(size)),
    )
    atoms = tuple(AtomCost(0.0, s / 3, 0.0, 2 * s / 3, 0.0, 10.0) for s in seconds)
    return graph, Costs(graph.fingerprint, {"cpu": atoms}, {"cpu": OptimizerCost(2.0, 0.0, 0.0)}, {"cpu": "made up"})


def bottleneck(seconds: list[float], boundaries: list[int]) -> float:
    edges = [0, *boundaries, len(seconds)]
    return max(sum(seconds[a:b]) for a, b in pairwise(edges))


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9), st.data())
@settings(max_examples=60, deadline=None)
def test_partition_is_as_balanced_as_the_best_of_all(seconds: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(seconds)))
    graph, costs = chain(seconds)
    found = balanced_boundaries(graph, costs, local_cluster(stages), [[i] for i in range(stages)], 1)
    best = min(bottleneck(seconds, list(c)) for c in combinations(range(1, len(seconds)), stages - 1))
    assert found == sorted(set(found)) and len(found) == stages - 1
    assert bottleneck(seconds, found) <= best * (1 + SLACK) + 1e-9


def test_among_equally_balanced_cuts_the_one_that_sends_less_is_taken() -> None:
    graph, costs = chain([1.0, 0.01, 0.01, 1.0])
    wide = tuple(
        Value(v.name, v.producer, v.consumers, (1, 1000 if i != 1 else 1), v.dtype, 0, True)
        for i, v in enumerate(graph.values)
    )
    graph = Graph(graph.name, graph.atoms, wide, graph.parameters)
    costs = Costs(graph.fingerprint, costs.atoms, costs.optimizer)
    assert crossing_bytes(graph, 1).tolist() == [0.0, 4000.0, 4.0, 4000.0, 0.0]
    assert balanced_boundaries(graph, costs, local_cluster(2), [[0], [1]], 1) == [2]


def test_more_stages_than_atoms_is_refused() -> None:
    graph, costs = chain([1.0, 1.0])
    with pytest.raises(PlaitError, match="at most 2 stages"):
        balanced_boundaries(graph, costs, local_cluster(3), [[0], [1], [2]], 1)


def test_plans_are_ranked_by_simulated_time_and_none_beats_the_bound() -> None:
    graph, costs = chain([0.1] * 8)
    answer = find_plans(graph, costs, cluster_with_cores(4), batch_size=16)
    times = [candidate.timeline.step_seconds for candidate in answer.candidates]
    assert times == sorted(times)
    assert times[0] >= answer.bound_seconds > 0


def test_what_the_user_fixes_stays_fixed() -> None:
    graph, costs = chain([0.1] * 8)
    wishes = Wishes(replicas=(1, 2), micro_batches=4, schedule="gpipe")
    answer = find_plans(graph, costs, cluster_with_cores(4), batch_size=16, wishes=wishes)
    assert {(c.plan.layout(), c.plan.micro_batches, c.plan.schedule) for c in answer.candidates} == {
        ("1+2", 4, "gpipe")
    }


def test_a_plan_that_does_not_fit_names_the_device_and_what_it_lacks() -> None:
    graph, costs = chain([0.1] * 4)
    huge = tuple(AtomCost(a.forward_fixed, a.forward_per_row, 0.0, 0.0, 0.0, 1e15) for a in costs.atoms["cpu"])
    costs = Costs(graph.fingerprint, {"cpu": huge}, costs.optimizer)
    with pytest.raises(PlaitError, match=r"local/cpu0 would need .* but the device has"):
        find_plans(graph, costs, cluster_with_cores(2), batch_size=8)


def test_gradients_are_summed_by_a_switch_where_that_is_fastest_and_no_bound_is_beaten() -> None:
    problem = toys.chain([0.01] * 4, parameter=10**8)
    plain = toys.hosts(1, 1, 1, 1)
    wishes = Wishes(replicas=(4,), overlap="off")
    summing = replace(plain, aggregators=(Aggregator("switch", 64, 8896, 0.98),))
    without, by_switch = (
        find_plans(*problem, cluster, batch_size=16, wishes=wishes, budget_seconds=0.5) for cluster in (plain, summing)
    )
    assert (without.best.plan.sync, by_switch.best.plan.sync) == ("hierarchical", "passing")
    assert by_switch.best.timeline.step_seconds < without.best.timeline.step_seconds
    assert by_switch.best.timeline.step_seconds >= by_switch.bound_seconds


def cluster_with_cores(devices: int) -> Cluster:
    """Processes that do not have to share cores, whatever machine the tests run on."""
    found = local_cluster(devices)
    hosts = tuple(type(host)(host.name, compute_slots=None) for host in found.hosts)
    return Cluster(found.name, hosts, found.devices, found.switches, found.links)
