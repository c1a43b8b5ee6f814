"""The optimum of small cases, the bounds under it and the plans over it."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from pytest import approx
from small_searches import KIND, Search, searches

from plait.cluster import Cluster, Device, Host, Link
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.errors import PlaitError
from plait.graph import Atom, Graph, Value
from plait.program import compile_program
from plait.search.bounds import cluster_bound, plan_bound
from plait.search.exact import solve_exactly
from plait.search.exact.plans import all_plans
from plait.simulate import simulate

ROUNDING = 1 + 1e-4  # what the solver may be above the optimum
EXACT = 1 + 1e-9


def case(atoms: int, devices: int, *, bandwidth: float = 1e30, per_row: float = 0.0, fixed: float = 1.0) -> Search:
    """Atoms of one second and two backward, 4 bytes a row between them; devices in a line."""
    graph = Graph(
        "chain",
        tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(atoms)),
        tuple(Value(f"v{n}", n, (n + 1,), (1, 1), "float32", 0, True) for n in range(atoms - 1)),
        (),
    )
    atom = AtomCost(fixed, per_row, 2 * fixed, 2 * per_row, 0.0, 0.0)
    costs = Costs(graph.fingerprint, {"unit": (atom,) * atoms}, {"unit": OptimizerCost(0.0, 0.0, 0.0)})
    cluster = Cluster(
        "line",
        (Host("h"),),
        tuple(Device(f"d{n}", "h", KIND, 2**40) for n in range(devices)),
        (),
        tuple(Link(f"d{n}", f"d{n + 1}", bandwidth, 0.0) for n in range(devices - 1)),
    )
    return Search(graph, costs, cluster, 8, 2)


@given(searches())
@settings(max_examples=25, deadline=None)
def test_no_bound_is_above_the_optimum_and_no_plan_below(search):
    answer = solve_exactly(*search.arguments, search.micro_batches)
    assert answer.complete
    assert cluster_bound(*search.arguments).seconds <= answer.seconds * EXACT
    alike = cluster_bound(*search.arguments, overlap="off", interleaved=False, split_backwards=False)
    assert alike.seconds <= answer.seconds * EXACT
    assert plan_bound(answer.plan, search.graph, search.costs).seconds <= answer.seconds * EXACT
    for plan in all_plans(search.graph, search.cluster, search.batch_size, search.micro_batches):
        for schedule in ("gpipe", "1f1b"):
            ordered = replace(plan, schedule=schedule)
            simulated = simulate(compile_program(ordered, search.graph), ordered, search.costs).step_seconds
            assert answer.seconds <= simulated * ROUNDING


def test_equal_atoms_on_equal_devices_are_a_textbook_pipeline():
    search = case(2, 2)
    answer = solve_exactly(*search.arguments, 3)
    assert answer.seconds == approx((3 + 1) * 3)
    assert answer.complete
    assert len(answer.plan.stages) == 2


def test_a_slow_link_leaves_all_but_one_device_idle():
    search = case(2, 3, bandwidth=0.1)
    answer = solve_exactly(*search.arguments, 2)
    assert answer.plan.layout() == "1x1"
    assert answer.seconds == approx(2 * 2 * 3)


def test_an_order_better_than_the_usual_schedules_is_found():
    """One-second messages: 1F1B waits for each in turn, GPipe for the last."""
    search = case(3, 2, bandwidth=16.0)
    answer = solve_exactly(*search.arguments, 4)
    assert answer.simulated_seconds == approx(26)
    assert answer.seconds == approx(24)
    assert [len(lane.split(",")) for lane in answer.plan.lanes] == [8, 8]
    assert answer.plan.lanes[0].startswith("0F0,0F1,0F2")
    assert answer.ordered_seconds == approx(24)


def test_the_order_found_has_every_computation_once():
    answer = solve_exactly(*case(4, 3, bandwidth=8.0).arguments, 3)
    assert len(answer.plan.lanes) == 3
    for stage, lane in enumerate(answer.plan.lanes):
        assert sorted(lane.split(",")) == sorted(f"{stage}{kind}{m}" for kind in "FB" for m in range(3))


def test_without_time_the_answer_is_a_plan_and_what_is_proved_so_far():
    search = case(4, 3, bandwidth=2.0, per_row=0.3)
    hurried = solve_exactly(*search.arguments, 4, time_limit=0.0)
    answer = solve_exactly(*search.arguments, 4)
    assert hurried.proved_seconds <= answer.seconds * ROUNDING
    assert hurried.seconds >= answer.seconds / ROUNDING


@pytest.mark.parametrize(
    ("search", "micro_batches", "said"),
    [
        (case(9, 2), 2, "9 atoms, but takes at most 8"),
        (case(2, 5), 2, "5 devices, but takes at most 4"),
        (case(2, 2), 9, "9 micro-batches, but takes at most 8"),
    ],
)
def test_a_case_too_large_is_refused(search, micro_batches, said):
    with pytest.raises(PlaitError, match=said):
        solve_exactly(*search.arguments, micro_batches)


def test_devices_that_share_cores_are_refused():
    search = case(2, 2)
    shared = replace(search.cluster, hosts=(Host("h", compute_slots=1),))
    with pytest.raises(PlaitError, match="share 1 compute slots"):
        solve_exactly(search.graph, search.costs, shared, 8, 2)


def test_a_batch_smaller_than_its_micro_batches_is_refused():
    search = case(2, 2)
    with pytest.raises(PlaitError, match="smaller than 3 micro-batches"):
        solve_exactly(search.graph, search.costs, search.cluster, 2, 3)


def test_without_or_tools_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(PlaitError, match=r'pip install "plait\[exact\]"'):
        solve_exactly(*case(2, 2).arguments, 2)
