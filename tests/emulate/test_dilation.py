"""The factors that make a cluster playable on one machine."""

import math
from dataclasses import replace

import pytest

from plait.emulate.dilation import FASTEST_WIRE, SLOWEST_WIRE, TRAFFIC, Step, as_emulated, choose_dilation, step_of
from plait.emulate.shaping import Shape, payload_share
from plait.errors import PlaitError
from plait.program import compile_program
from plait.simulate import simulate


def step(seconds: float = 1.0, computation: float = 0.01, rounds: int = 0, **links: float) -> Step:
    return Step(seconds, [computation] * 9, rounds, [(1e6, bandwidth) for bandwidth in links.values()])


def test_the_median_computation_takes_twenty_milliseconds() -> None:
    assert choose_dilation(step(computation=0.004, seconds=1)).time == pytest.approx(5)


def test_a_long_step_is_slowed_down_less_but_never_to_computations_too_short_for_a_timer() -> None:
    assert choose_dilation(step(computation=0.002, seconds=2)).time == pytest.approx(5)
    assert choose_dilation(step(computation=0.0001, seconds=2)).time == pytest.approx(50)


def test_every_round_of_gradient_sums_has_time() -> None:
    slow, quick = (choose_dilation(step(computation=0.5, seconds=1, rounds=rounds)).time for rounds in (1000, 0))
    assert slow > 3 * quick


def test_links_are_as_fast_as_a_wire_can_be_shaped() -> None:
    found = choose_dilation(step(fast=12e9, slow=3e9))
    assert found.on_bed(12e9) == pytest.approx(FASTEST_WIRE)
    assert found.on_bed(3e9) == pytest.approx(FASTEST_WIRE / 4)
    assert found.as_emulated(3e9) == pytest.approx(3e9)


def test_of_links_too_far_apart_the_fastest_are_held() -> None:
    found = choose_dilation(step(fast=300e9, slow=1e8))
    assert found.on_bed(1e8) == pytest.approx(SLOWEST_WIRE)
    assert found.on_bed(300e9) == FASTEST_WIRE
    assert found.as_emulated(300e9) < 300e9


def test_traffic_stays_within_what_the_machine_carries() -> None:
    busy = Step(1.0, [0.02], 0, [(12e9, 12e9)] * 20)
    found = choose_dilation(busy)
    assert 20 * 12e9 / found.payload / found.time <= TRAFFIC * 1.001


def test_a_message_takes_as_many_times_longer_as_a_computation() -> None:
    found = choose_dilation(step(link=12e9), time=7.0)
    num_bytes = 25 * 2**20
    assert num_bytes / found.payload / found.on_bed(12e9) == pytest.approx(7.0 * num_bytes / 12e9)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_factor_that_is_none_is_refused(factor: float) -> None:
    with pytest.raises(PlaitError, match="must be above 0"):
        choose_dilation(step(), time=factor)


def test_headers_are_on_top_of_what_messages_get() -> None:
    assert Shape(1e6, 1500).rate * payload_share(1500) == pytest.approx(1e6)
    assert "rate 8364641bit" in Shape(1e6, 1500).qdisc("wire0", 1 << 20)


def test_the_cluster_that_is_emulated_simulates_like_the_plans_own(small) -> None:
    plan, costs = small.plan(stages=3, schedule="1f1b"), small.prepared.costs
    program = compile_program(plan, small.prepared.graph)
    dilation = choose_dilation(step_of(plan, program, costs))
    seconds = [
        simulate(program, replace(plan, cluster=cluster), costs).step_seconds
        for cluster in (plan.cluster, as_emulated(plan.cluster, dilation))
    ]
    assert seconds[0] == pytest.approx(seconds[1])
    assert as_emulated(plan.cluster, dilation, latency=1e-3).links[0].latency == pytest.approx(1e-3 / dilation.time)
