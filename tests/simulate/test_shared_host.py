"""Processes on the cores of one machine share them evenly when more are busy than there are."""

import pytest
from pytest import approx
from small_runs import case, chain, instruction, star, times

from plait.simulate.shared import SharedHost

WORK = instruction("F s0 m0 rows 0:1")


def ends(slots: int, works: list[tuple[float, float]]) -> list[float]:
    """When each of (start, seconds of work) is done, on a host of its own."""
    host = SharedHost(event=0, slots=slots)
    found: dict[int, float] = {}
    waiting = sorted((start, rank, seconds) for rank, (start, seconds) in enumerate(works))
    while waiting or host.busy:
        next_end = host.next_end() if host.busy else float("inf")
        if waiting and waiting[0][0] < next_end:
            start, rank, seconds = waiting.pop(0)
            host.start(rank, start, seconds, WORK)
        else:
            found |= {rank: next_end for rank, _, _ in host.finish(next_end)}
    return [found[rank] for rank in range(len(works))]


def test_one_process_per_core_runs_at_full_speed():
    assert ends(2, [(0, 1), (0, 3)]) == approx([1, 3])


def test_twice_as_many_processes_as_cores_take_twice_as_long():
    assert ends(2, [(0, 1)] * 4) == approx([2] * 4)


def test_three_processes_on_two_cores_take_half_as_long_again():
    assert ends(2, [(0, 1)] * 3) == approx([1.5] * 3)


def test_who_comes_later_slows_down_who_is_there():
    assert ends(1, [(0, 2), (1, 1)]) == approx([3, 3])


def test_who_is_done_gives_its_share_back():
    assert ends(1, [(0, 1), (0, 3)]) == approx([2, 4])


def test_work_of_no_length_is_done_at_once():
    assert ends(1, [(0, 0.0), (0, 1)]) == approx([0, 1])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6, 1e9])
def test_any_length_of_work_comes_to_an_end(scale):
    works = [(0.1 * n * scale, (1 + n / 3) * scale) for n in range(7)]
    total = sum(seconds for _, seconds in works)
    assert max(ends(3, works)) >= total / 3 * (1 - 1e-9)
    assert max(ends(3, works)) <= (total + 0.6 * scale) * (1 + 1e-9)


# The engine on such a host


def test_replicas_on_fewer_cores_than_they_are_take_turns():
    timeline = case(chain(1), star(4, slots=2), [4], rows=4).run()
    assert times(timeline, 0, "compute", "0F0") == (approx(0), approx(2))
    assert times(timeline, 3, "compute", "0F0") == (approx(0), approx(2))
    assert timeline.step_seconds == approx(2 * (1 + 2))


def test_as_many_cores_as_replicas_slow_nobody_down():
    assert case(chain(1), star(2, slots=2), [2], rows=2).run().step_seconds == approx(3)


def test_a_pipeline_on_one_core_takes_the_sum_of_all_work():
    timeline = case(chain(3), star(3, slots=1), [1, 1, 1], micro_batches=4).run()
    assert timeline.step_seconds == approx(3 * 4 * (1 + 2))


def test_a_stage_that_waits_leaves_its_core_to_others():
    """Stage 0 alone at first, so at full speed although there are two ranks for one core."""
    timeline = case(chain(2), star(2, slots=1), [1, 1]).run()
    assert times(timeline, 0, "compute", "0F0") == (approx(0), approx(1))
    assert timeline.step_seconds == approx(6)


def test_coupled_replicas_share_cores_too():
    timeline = case(chain(1, mixers=[0]), star(4, slots=2), [4], rows=4, micro_batches=2).run()
    assert timeline.step_seconds == approx(2 * 2 * (1 + 2))


def test_optimiser_steps_share_cores_too():
    timeline = case(chain(1, parameter=8), star(2, slots=1), [2], rows=2).run(step=1.0)
    assert timeline.step_seconds == approx(2 * (1 + 2) + 2 * 1)
