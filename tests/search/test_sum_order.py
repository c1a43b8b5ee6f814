"""Gradient sums that go on in the next step begin in the order in which it needs them, of those that are final."""

from dataclasses import replace
from itertools import permutations

from pytest import approx
from small_searches import KIND

from plait.cluster import Cluster, Device, Host, Link
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, Value
from plait.plan import Plan, StagePlan
from plait.program import compile_program
from plait.search.bounds import plan_bound
from plait.search.sum_order import with_sum_order
from plait.simulate import step_seconds

ATOMS = 6
SUM = 2.9  # seconds of each atom's


def graph() -> Graph:
    values = tuple(Value(f"v{n}", n, (n + 1,), (1, 1), "float32", 0, True) for n in range(ATOMS - 1))
    parameters = tuple(Parameter(f"p{n}", (100,), "int8", (n,), True, False) for n in range(ATOMS))
    return Graph("chain", tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(ATOMS)), values, parameters)


def costs() -> Costs:
    """A forward of 1 s and a backward of 2 s an atom."""
    atoms = (AtomCost(1.0, 0.0, 2.0, 0.0, 0.0, 0.0),) * ATOMS
    return Costs(graph().fingerprint, {"unit": atoms}, {"unit": OptimizerCost(0.0, 0.0, 0.0)})


def two_replicas(schedule: str = "1f1b", overlap: str = "full", seconds: float = SUM) -> Plan:
    devices = tuple(Device(f"d{n}", f"h{n}", KIND, 2**40) for n in range(2))
    cluster = Cluster("pair", (Host("h0"), Host("h1")), devices, (), (Link("d0", "d1", 100 / seconds, 0.0),))
    stages = (StagePlan(0, ATOMS, (0, 1), (1.0, 1.0)),)
    return Plan("chain", graph().fingerprint, cluster, 2, 1, schedule, stages, overlap=overlap, bucket_bytes=1)


def test_what_the_next_step_needs_first_does_not_wait_behind_what_was_final_first():
    """Sums take longer than backwards: atom 3's could begin at 7.8 s, when those of atoms 2, 1 and 0 are to be final at
    8 s, 10 s and 12 s; it is left for the end."""
    plan = with_sum_order(two_replicas(), graph(), costs())
    assert plan.stages[0].sum_order == (0, 1, 3, 4, 5, 2)
    seconds = step_seconds(compile_program(plan, graph()), plan, costs())
    assert seconds == approx(6 * 3 + 4.7)  # it waits for the sum of atom 0
    assert seconds < step_seconds(compile_program(two_replicas(), graph()), two_replicas(), costs()) - 1
    bound = plan_bound(plan, graph(), costs())
    assert bound.name == "load and sums"
    assert bound.seconds == approx(6 * 3 + SUM)  # the first atom's sum hides behind nothing


def test_sums_that_may_not_go_on_in_the_next_step_begin_as_they_are_final():
    for plan in (two_replicas(overlap="backward"), two_replicas("zb-h1")):
        assert with_sum_order(plan, graph(), costs()) == plan


def test_a_stage_on_one_device_has_no_sums():
    plan = replace(two_replicas(), stages=(StagePlan(0, ATOMS, (0,), (1.0,)),))
    assert with_sum_order(plan, graph(), costs()) == plan


def test_links_that_keep_up_carry_sums_as_gradients_become_final():
    (stage,) = with_sum_order(two_replicas(seconds=0.5), graph(), costs()).stages
    assert stage.sum_order == tuple(range(ATOMS))


def test_no_order_of_sums_is_a_hundredth_faster():
    for seconds in (1.0, 1.5, 2.0, SUM, 4.0):
        made = with_sum_order(two_replicas(seconds=seconds), graph(), costs())
        times = {
            order: step_seconds(compile_program(summing_in(made, order), graph()), made, costs())
            for order in permutations(range(ATOMS))
        }
        assert times[made.stages[0].sum_order] <= min(times.values()) * 1.01


def summing_in(made: Plan, order: tuple[int, ...]) -> Plan:
    return replace(made, stages=(replace(made.stages[0], sum_order=order),))
