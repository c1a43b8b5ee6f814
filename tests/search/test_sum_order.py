"""Which gradient sums go first when the next step is to use them."""

from dataclasses import replace
from itertools import permutations

from toys import chain, hosts

from plait.plan import Plan, even_stages
from plait.program import compile_program
from plait.search.sum_order import with_sum_order
from plait.simulate import step_seconds

SIZE = 6
MADE = chain([0.75] * SIZE, parameter=100)  # of two rows, a backward of 3 s in six parts


def plan(bandwidth: float, overlap: str = "full") -> Plan:
    graph, _ = MADE
    cluster = hosts(1, 1, uplink=bandwidth, inside=1e9)
    stages = even_stages([], SIZE, [[0, 1]])
    return Plan("chain", graph.fingerprint, cluster, 2, 1, "1f1b", stages, bucket_bytes=1, overlap=overlap)


def order(bandwidth: float, overlap: str = "full") -> tuple[int, ...]:
    (stage,) = with_sum_order(plan(bandwidth, overlap), *MADE).stages
    return stage.sum_order


def test_links_that_keep_up_carry_sums_as_gradients_become_final() -> None:
    assert order(1e6) == tuple(range(SIZE))


def test_what_has_just_become_final_overtakes_what_waits() -> None:
    # A sum takes as long as two parts of the backward: at its end half of them wait, and go as they are needed.
    assert order(100.0) == (0, 2, 4, 5, 3, 1)


def test_no_order_of_sums_is_a_hundredth_faster() -> None:
    graph, costs = MADE
    for bandwidth in (400.0, 200.0, 130.0, 100.0, 50.0):
        made = with_sum_order(plan(bandwidth), graph, costs)
        times = {
            other: step_seconds(compile_program(made_with(made, other), graph), made, costs)
            for other in permutations(range(SIZE))
        }
        assert times[made.stages[0].sum_order] <= min(times.values()) * 1.01


def made_with(made: Plan, sum_order: tuple[int, ...]) -> Plan:
    return replace(made, stages=(replace(made.stages[0], sum_order=sum_order),))


def test_only_full_overlap_has_an_order_of_its_own() -> None:
    assert order(100.0, "backward") == ()
