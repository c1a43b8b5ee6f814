"""The search shares layers between the devices of a host where that is worth its exchanges, and only there."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from toys import chain, hosts, problem

from plait.cluster import Cluster
from plait.cost import Costs
from plait.errors import PlaitError
from plait.graph import Graph
from plait.graph.sharding import Collective, Sharding
from plait.plan import validate
from plait.search import Answer, Problem, Wishes, evaluate, find_plans
from plait.search.baselines.grid import grid, grid_options
from plait.search.bounds import cluster_bound
from plait.search.groups import Groups, TensorGroups, grouped, replicas_of
from plait.search.layout import Layout
from plait.search.loads import fine_loads
from plait.search.score import Scorer


def shared(made: tuple[Graph, Costs], *degrees: int, exchanged: float = 0.0) -> tuple[Graph, Costs]:
    """All layers may be shared by so many devices, which then sum so many bytes a row in every atom, both ways."""
    graph, costs = made
    size = len(graph.atoms)
    split = {parameter.name: 0 for parameter in graph.parameters}
    sums = tuple(
        Collective(atom, "all-reduce", phase, exchanged) for atom in range(size) for phase in ("forward", "backward")
    )
    ways = tuple(
        Sharding(0, size, degree, split, sums if exchanged else (), (1 / degree,) * size, (1 / degree,) * size, {})
        for degree in degrees
    )
    return graph, replace(costs, shardings=ways)


def found(made: tuple[Graph, Costs], cluster: Cluster, batch_size: int, **wishes: object) -> Answer:
    answer = find_plans(*made, cluster, batch_size=batch_size, wishes=Wishes(**wishes), budget_seconds=10.0)
    for candidate in answer.candidates:
        validate(candidate.plan, made[0])
        assert candidate.step_seconds >= answer.bound_seconds * (1 - 1e-9)
        assert candidate.bound is not None and candidate.step_seconds >= candidate.bound.seconds * (1 - 1e-9)
    return answer


def test_a_single_row_is_shared_by_all_devices_of_a_host():
    made = shared(chain([1.0] * 4, parameter=1000), 2, 4)
    plan = found(made, hosts(4), 1).best.plan
    assert [(stage.replicas, stage.tensor) for stage in plan.stages] == [(1, 4)]
    assert plan.stages[0].split == {f"p{n}": 0 for n in range(4)}
    assert found(made, hosts(4), 1).best.step_seconds == approx(1.0, rel=0.01)


def test_layers_are_not_shared_where_exchanges_take_longer_than_they_save():
    made = shared(chain([1.0] * 4, parameter=1000), 2, 4, exchanged=1e10)
    assert all(stage.tensor == 1 for stage in found(made, hosts(4), 1).best.plan.stages)


def test_groups_stay_on_one_host():
    made = shared(chain([1.0] * 4, parameter=1000), 2)
    plan = found(made, hosts(2, 2, 2), 3, tensor=2).best.plan
    assert {stage.tensor for stage in plan.stages} == {2}
    for stage in plan.stages:
        assert all(len({plan.cluster.devices[device].host for device in group}) == 1 for group in stage.groups)


def test_what_fits_no_device_is_shared_by_several():
    memory = 5000
    made = shared(chain([1.0], parameter=1500), 2)  # 6000 bytes with gradient and optimiser state
    with pytest.raises(PlaitError, match="would need"):
        found((made[0], replace(made[1], shardings=())), hosts(2, memory=memory), 4)
    best = found(made, hosts(2, memory=memory), 4).best
    assert best.plan.stages[0].tensor == 2
    assert all(use.peak <= memory for use in best.memory)


def test_one_stage_may_share_its_layers_and_another_not():
    """The second atom's gradients are too many to be summed, the first one's activations to be exchanged."""
    graph, costs = chain([1.0, 1.0], parameter=10)
    heavy = replace(graph.parameters[1], shape=(4 * 10**8,))
    graph = replace(graph, parameters=(graph.parameters[0], heavy))
    costs = replace(costs, fingerprint=graph.fingerprint)
    dear = tuple(Collective(0, "all-reduce", phase, 1e10) for phase in ("forward", "backward"))
    way = Sharding(0, 2, 2, {"p0": 0, "p1": 0}, dear, (0.5, 0.5), (0.5, 0.5), {})
    plan = found((graph, replace(costs, shardings=(way,))), hosts(4, inside=1e8), 4, stages=2).best.plan
    assert [stage.tensor for stage in plan.stages] == [1, 2]


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        ({"tensor": 8}, "none of toy has more than 4"),
        ({"tensor": 2, "replicas": (3, 1)}, "a stage was asked for on 3 devices, in groups of 2"),
        ({"tensor": 3}, "it is not known how so many would: 1, 2 can be planned for"),
    ],
    ids=str,
)
def test_wishes_that_cannot_be_are_refused(wishes, why):
    made = shared(chain([1.0] * 2, parameter=1000), 2)
    with pytest.raises(PlaitError, match=why):
        find_plans(*made, hosts(4), batch_size=8, wishes=Wishes(**wishes))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Problem, Layout]:
    size = draw(st.integers(1, 4))
    made = chain(draw(st.lists(st.floats(0.1, 2.0), min_size=size, max_size=size)), parameter=64)
    made = shared(made, 2, 4, exchanged=draw(st.sampled_from([0.0, 1e6, 1e8])))
    cluster = hosts(4, 4, inside=1e8, uplink=1e7)
    boundaries = tuple(sorted(draw(st.sets(st.integers(1, size - 1), max_size=1)))) if size > 1 else ()
    groups = [
        grouped(range(4 * host, 4 * host + 4), draw(st.sampled_from([1, 2, 4]))) for host in range(len(boundaries) + 1)
    ]
    count = draw(st.integers(1, 3))
    problem = Problem(*made, cluster, 4 * count * draw(st.integers(1, 3)), overlap="off")
    return problem, Layout(boundaries, tuple(groups), (False,) * len(groups), count)


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_a_score_comes_close_to_what_the_simulator_says(case):
    problem, layout = case
    loads = fine_loads(problem.graph, problem.costs)
    groups = Groups(problem.cluster, problem.costs, "ring")
    score = Scorer(problem, loads, groups, split=False)(layout)
    plan = layout.plan(problem, groups, "gpipe" if layout.num_stages > 1 else "1f1b")
    step = evaluate(plan, problem.graph, problem.costs).step_seconds
    assert score <= step * 1.02 + 1e-6
    if layout.num_stages == 1:
        assert step == approx(score, rel=0.02)


@given(layouts())
@settings(max_examples=40, deadline=None)
def test_no_plan_that_shares_layers_beats_the_bound_of_all(case):
    problem, layout = case
    groups = Groups(problem.cluster, problem.costs, "hierarchical")
    for overlap in ("off", "backward", "full"):
        bound = cluster_bound(*_asked(problem), overlap=overlap, shared_layers=True)
        plan = replace(layout.plan(problem, groups, "gpipe"), overlap=overlap)
        assert evaluate(plan, problem.graph, problem.costs).step_seconds >= bound.seconds * (1 - 1e-9)


def _asked(problem: Problem) -> tuple[Graph, Costs, Cluster, int]:
    return problem.graph, problem.costs, problem.cluster, problem.batch_size


def test_the_uniform_grid_has_a_tensor_parallel_side():
    made = shared(chain([1.0] * 4, parameter=1000), 2, 4)
    plan = grid(problem(hosts(4), made, 1))
    assert [(stage.replicas, stage.tensor) for stage in plan.stages] == [(1, 4)]
    dear = shared(chain([1.0] * 4, parameter=1000), 2, 4, exchanged=1e10)
    assert {stage.tensor for stage in grid(problem(hosts(4), dear, 8)).stages} == {1}


def test_what_the_uniform_grid_is_ranked_by_comes_close_to_what_the_simulator_says():
    made = shared(chain([1.0] * 4, parameter=1000), 2, exchanged=1e7)
    asked = replace(problem(hosts(4, 4), made, 8), overlap="off")
    options = [o for o in grid_options(asked) if o.layout.tensor == 2 and o.schedule == "1f1b"]
    assert {len(option.layout.groups) for option in options} == {1, 2, 3, 4}
    for option in options:
        step = evaluate(option.layout.plan(option.micro_batches, "1f1b"), asked.graph, asked.costs).step_seconds
        assert option.seconds == approx(step, rel=0.25)


def test_groups_of_different_sizes_are_different():
    pairs, fours = TensorGroups(range(4), 2), TensorGroups(range(4), 4)
    assert len({pairs, fours, tuple(range(4)), TensorGroups(range(4), 2)}) == 3
    assert replicas_of(pairs) == [(0, 1), (2, 3)]
    assert all(one != other for one, other in pairwise([pairs, fours, tuple(range(4))]))
