"""Bounds: sound for every plan and order tried, and tight where the optimum is known."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytest import approx
from small_searches import KIND, searches

from plait.cluster import Cluster, Device, Host, Link
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, RowMixer, Value
from plait.plan import OVERLAPS, Plan, StagePlan
from plait.program import compile_program
from plait.search.bounds import cluster_bound, plan_bound
from plait.search.bounds.serial import Item, serial_bound
from plait.search.bounds.share import OFF, least_bytes
from plait.search.exact.plans import all_plans
from plait.search.sum_order import with_sum_order
from plait.simulate import simulate

FREE = 1e30
EXACT = 1 + 1e-9


def chain(atoms: int, *, parameter: int = 0, mixers: tuple[int, ...] = ()) -> Graph:
    """4 bytes a row from each atom to the next."""
    return Graph(
        "chain",
        tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(atoms)),
        tuple(Value(f"v{n}", n, (n + 1,), (1, 1), "float32", 0, True) for n in range(atoms - 1)),
        tuple(Parameter(f"p{n}", (parameter,), "int8", (n,), True, False) for n in range(atoms) if parameter),
        tuple(RowMixer(n, f"a{n}", "", "statistics", "exchange") for n in mixers),
    )


def seconds(graph: Graph, *, step: float = 0.0, saved: float = 0.0) -> Costs:
    """A forward of 1 s and a backward of 2 s, however many rows."""
    atom = AtomCost(1.0, 0.0, 2.0, 0.0, saved, 0.0, weight_fixed=1.0)
    return Costs(graph.fingerprint, {"unit": (atom,) * len(graph.atoms)}, {"unit": OptimizerCost(0.0, 0.0, step)})


def star(devices: int, *, bandwidth: float = FREE, slots: int | None = None, memory: int = 2**40) -> Cluster:
    names = [f"d{n}" for n in range(devices)]
    return Cluster(
        "star",
        (Host("host", slots),),
        tuple(Device(name, "host", KIND, memory) for name in names),
        ("switch",),
        (*(Link(name, "switch", bandwidth, 0.0) for name in names), Link("host", "switch", 1.0, 0.0)),
    )


def plan_of(graph: Graph, cluster: Cluster, layout: list[int], micro_batches: int, schedule: str = "1f1b") -> Plan:
    edges = [len(graph.atoms) * n // len(layout) for n in range(len(layout) + 1)]
    device = iter(range(len(cluster.devices)))
    stages = tuple(
        StagePlan(edges[n], edges[n + 1], tuple(next(device) for _ in range(size)), (1.0,) * size)
        for n, size in enumerate(layout)
    )
    rows = micro_batches * max(layout)
    return Plan("chain", graph.fingerprint, cluster, rows, micro_batches, schedule, stages, overlap="off")


def simulated(plan: Plan, graph: Graph, costs: Costs) -> float:
    return simulate(compile_program(plan, graph), plan, costs).step_seconds


# A given plan


@given(searches(), st.data())
@settings(max_examples=60, deadline=None)
def test_no_schedule_of_a_plan_beats_its_bound(search, data):
    plans = list(all_plans(search.graph, search.cluster, search.batch_size, search.micro_batches))
    plan = data.draw(st.sampled_from(plans))
    slots = data.draw(st.sampled_from([None, 1, 2]))
    cluster = replace(search.cluster, hosts=tuple(replace(host, compute_slots=slots) for host in search.cluster.hosts))
    shares = data.draw(st.sampled_from([1.0, 2.0, 0.3]))
    first = plan.stages[0]
    uneven = replace(first, shares=(shares, *first.shares[1:]))
    plan = replace(plan, cluster=cluster, stages=(uneven, *plan.stages[1:]), bucket_bytes=100)
    for schedule, overlap in product(("gpipe", "1f1b", "zb-h1"), OVERLAPS):
        ordered = replace(plan, schedule=schedule, overlap=overlap)
        bound = plan_bound(ordered, search.graph, search.costs)
        for sums in (ordered, with_sum_order(ordered, search.graph, search.costs)):
            assert bound.seconds <= simulated(sums, search.graph, search.costs) * EXACT


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 4), (4, 6)])
def test_equal_stages_are_bounded_by_their_textbook_time(stages, micro_batches):
    graph = chain(stages)
    plan = plan_of(graph, star(stages), [1] * stages, micro_batches)
    bound = plan_bound(plan, graph, seconds(graph))
    assert bound.seconds == approx((micro_batches + stages - 1) * 3)
    assert bound.name == "load"
    assert bound.where == f"stage {stages - 1} on d{stages - 1}"


@pytest.mark.parametrize("layout", [[4], [2, 2], [1, 3], [1, 1, 1, 1]])
def test_gpipe_on_free_links_is_as_good_as_its_bound(layout):
    graph = chain(4, parameter=60)
    plan = plan_of(graph, star(4), layout, 4, "gpipe")
    costs = seconds(graph, step=0.25)
    assert plan_bound(plan, graph, costs).seconds == approx(simulated(plan, graph, costs))


def test_a_slow_link_is_named():
    graph = chain(2)
    plan = plan_of(graph, star(2, bandwidth=0.5), [1, 1], 4)
    bound = plan_bound(plan, graph, seconds(graph))
    # 1 s, then four messages of 8 s, the last of which is followed by 3 s, another message and 2 s.
    assert bound.seconds == approx(1 + 4 * 8 + 3 + 8 + 2)
    assert bound.name == "channel"
    assert bound.where == "d0 to switch"


def test_a_value_sent_inside_the_forward_that_makes_it_arrives_sooner():
    """The first of three atoms makes what the second stage needs, and the link is slow."""
    graph = replace(chain(4), values=(Value("v0", 0, (3,), (1, 1), "float32", 0, True),))
    cluster = star(2, bandwidth=0.5)
    stages = StagePlan(0, 3, (0,), (1.0,)), StagePlan(3, 4, (1,), (1.0,))
    plan = Plan("chain", graph.fingerprint, cluster, 1, 1, "1f1b", stages, overlap="off")
    # 1 s for the first atom, 8 s there, forward and backward, 8 s back, three backwards of 2 s.
    assert plan_bound(plan, graph, seconds(graph)).seconds == approx(1 + 8 + 3 + 8 + 6)
    assert simulated(plan, graph, seconds(graph)) == approx(26)


def test_gradient_sums_and_steps_come_after_the_last_backward():
    graph = chain(1, parameter=100)
    plan = plan_of(graph, star(2, bandwidth=10), [2], 3)
    assert plan_bound(plan, graph, seconds(graph, step=0.5)).seconds == approx(3 * 3 + 100 / 10 + 0.5)


def test_split_backwards_may_leave_the_later_halves_for_the_end():
    graph = chain(2)
    fused = plan_of(graph, star(2), [1, 1], 4)
    split = replace(fused, schedule="zb-h1")
    assert plan_bound(fused, graph, seconds(graph)).seconds == approx(4 * 3 + 3)
    # The last stage starts 1 s late; the first one's I (of 1 s) follows its last I, not its last W.
    assert plan_bound(split, graph, seconds(graph)).seconds == approx(4 * 3 + 1)
    lanes = ("0F0,0B0", "1F0,1B0")
    assert plan_bound(replace(split, lanes=lanes), graph, seconds(graph)).seconds == approx(4 * 3 + 3)


def test_ranks_of_a_coupled_stage_take_the_slowest_of_them_every_time():
    graph = chain(1, mixers=(0,))
    cluster = star(2)
    slow = replace(cluster, devices=(cluster.devices[0], replace(cluster.devices[1], speed=0.5)))
    plan = plan_of(graph, slow, [2], 3)
    assert plan_bound(plan, graph, seconds(graph)).seconds == approx(simulated(plan, graph, seconds(graph)))


def test_a_host_with_one_core_does_everything_in_turn():
    graph = chain(2)
    plan = plan_of(graph, star(2, slots=1), [1, 1], 3)
    bound = plan_bound(plan, graph, seconds(graph))
    assert bound.seconds == approx(2 * 3 * 3)
    assert (bound.name, bound.where) == ("host", "host")


def test_room_for_one_micro_batch_means_one_round_trip_after_the_other():
    graph = chain(3)
    plan = plan_of(graph, star(3, memory=10), [1, 1, 1], 4)
    bound = plan_bound(plan, graph, seconds(graph, saved=10.0))
    assert bound.seconds == approx(4 * 3 * 3)
    assert bound.name == "memory"
    roomy = plan_of(graph, star(3, memory=40), [1, 1, 1], 4)
    assert plan_bound(roomy, graph, seconds(graph, saved=10.0)).seconds == approx((4 + 2) * 3)


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=5))
def test_no_order_of_jobs_on_one_machine_beats_jacksons_bound(jobs):
    best = float("inf")
    for order in permutations(jobs):
        clock = end = 0
        for release, work, tail in order:
            clock = max(clock, release) + work
            end = max(end, clock + tail)
        best = min(best, end)
    assert serial_bound(Item(*job) for job in jobs) <= best


# Any plan


@given(searches(atoms=5))
@settings(max_examples=25, deadline=None)
def test_no_simulated_plan_beats_the_bound_over_all_plans(search):
    for overlap in OVERLAPS:
        bound = cluster_bound(*search.arguments, overlap=overlap).seconds
        for plan in all_plans(search.graph, search.cluster, search.batch_size, search.micro_batches):
            overlapped = replace(plan, overlap=overlap)
            assert bound <= plan_bound(overlapped, search.graph, search.costs).seconds * EXACT


def test_one_device_takes_all_the_work():
    graph = chain(3)
    assert cluster_bound(graph, seconds(graph), star(1), 5).seconds == approx(9)


def test_replicas_that_sum_slowly_are_no_way_out():
    graph = chain(1, parameter=1000)
    costs = replace(seconds(graph), atoms={"unit": (AtomCost(0.0, 1.0, 0.0, 2.0, 0.0, 0.0),)})
    assert cluster_bound(graph, costs, star(2, bandwidth=1000.0), 8, overlap="off").seconds == approx(12 + 1)
    assert cluster_bound(graph, costs, star(2, bandwidth=1000.0), 8).seconds == approx(12)
    # Alone the device takes 24 s, together they would sum for 100 s.
    for overlap in OVERLAPS:
        assert cluster_bound(graph, costs, star(2, bandwidth=10.0), 8, overlap=overlap).seconds == approx(24)


def test_a_model_that_fits_on_no_device_alone_has_to_use_the_links():
    graph = chain(2, parameter=1000)
    costs = replace(seconds(graph), atoms={"unit": (AtomCost(0.0, 1.0, 0.0, 2.0, 0.0, 0.0),) * 2})
    roomy = cluster_bound(graph, costs, star(2, bandwidth=0.1), 8)
    tight = cluster_bound(graph, costs, star(2, bandwidth=0.1, memory=3000), 8)
    assert roomy.seconds == approx(48)
    assert tight.seconds >= 8 * 4 / 0.1


def test_with_whole_backwards_and_one_stage_on_a_device_filling_the_pipeline_counts():
    """Eight rows, one after the other, through two equal stages, against one stage whose sum takes 100 s."""
    graph = chain(2, parameter=1000)
    costs = replace(seconds(graph), atoms={"unit": (AtomCost(0.0, 1.0, 0.0, 2.0, 0.0, 0.0),) * 2})
    cluster = star(2, bandwidth=20.0)
    assert cluster_bound(graph, costs, cluster, 8).seconds == approx(8 * 3)
    plain = cluster_bound(graph, costs, cluster, 8, overlap="off", interleaved=False, split_backwards=False)
    assert plain.name == "stages"
    assert plain.seconds == approx(8 * 3 + 3, rel=1e-3)
    split = cluster_bound(graph, costs, cluster, 8, overlap="off", interleaved=False)
    assert split.seconds == approx(8 * 3 + 1, rel=1e-3)


def test_devices_that_are_good_at_different_atoms_are_not_played_off_against_each_other():
    """Each does its own atom in a second; an average of the two kinds would say they need longer."""
    graph = chain(2)
    fast, slow = AtomCost(0.0, 1.0, 0.0, 0.0, 0.0, 0.0), AtomCost(0.0, 100.0, 0.0, 0.0, 0.0, 0.0)
    optimizer = OptimizerCost(0.0, 0.0, 0.0)
    costs = Costs(
        graph.fingerprint, {"unit": (fast, slow), "other": (slow, fast)}, {"unit": optimizer, "other": optimizer}
    )
    cluster = star(2)
    other = replace(KIND, name="other")
    mixed = replace(cluster, devices=(cluster.devices[0], replace(cluster.devices[1], kind=other)))
    plan = replace(plan_of(graph, mixed, [1, 1], 4), batch_size=4)
    assert cluster_bound(graph, costs, mixed, 4).seconds <= simulated(plan, graph, costs)


@given(st.integers(2, 7), st.data())
@settings(max_examples=60, deadline=None)
def test_no_share_of_the_work_is_had_for_fewer_bytes(count, data):
    draw = data.draw
    some = st.sampled_from([0.0, 1.0, 5.0, 30.0])
    work, sent, parameters = (np.array([draw(some) for _ in range(count)]) for _ in range(3))
    level = st.sampled_from([0.0, 0.0, 1.0, 1.0, 0.3]) | st.floats(0, 1)
    x = np.array([draw(level) for _ in range(count)])
    assume(work.sum() > 0 and not np.all(x == 0) and not np.all(x == 1))
    views = (1.0, 0.5)
    found = least_bytes(work, sent, parameters, 4, views)
    done = float((x * work).sum() / work.sum()) * found.num_bins
    moved, shared = float((np.abs(np.diff(x)) * sent[1:]).sum()), float(parameters[(x > 0) & (x < 1)].sum())
    bins = np.arange(found.sent.shape[-1])
    possible = (bins + OFF + found.hidden[:, None] >= done - 1e-6) & ((bins - OFF) * found.kept[:, None] <= done + 1e-6)
    for view, least in zip(views, found.sent, strict=True):
        assert least[possible].min() <= (view * moved + shared) * (1 + 1e-9) + 1e-12
