"""Reasons, on timelines made by hand: each has one thing wrong with it, and that is what is said."""

from plait.cluster import local_cluster
from plait.plan import Plan, even_stages
from plait.program import Instruction, Op, RankMemory
from plait.report.reasons import Step, bottleneck, too_large, why_slower
from plait.simulate import Span, Timeline

PLAN = Plan("job", "f", local_cluster(2), 8, 2, "1f1b", even_stages([1], 2, [[0], [1]]))
F, SEND, AWAIT = Instruction(Op.F, 0, 0), Instruction(Op.SEND, 0, 0, "x", peer=1), Instruction(Op.AWAIT, name="b")


def step(*spans: tuple[int, str, Instruction, float, float], seconds: float) -> Step:
    return Step(PLAN, Timeline("simulated", 2, tuple(Span(*span) for span in spans), seconds))


BUSY = step((0, "compute", F, 0.0, 0.5), (1, "compute", F, 0.1, 0.9), seconds=1.0)


def test_the_bottleneck_is_the_stage_that_computes_longest() -> None:
    found = bottleneck(BUSY)
    assert found.cause == "compute"
    assert found.text == "computing, stage 1 on local/cpu1 for 800 ms, 80% of the step"


def test_a_link_in_use_for_longer_than_any_stage_is_the_bottleneck() -> None:
    sent = [(0, "send", SEND, 0.2 * i, 0.2 * i + 0.25) for i in range(5)]  # overlaps count once
    found = bottleneck(step((0, "compute", F, 0.0, 0.5), *sent, seconds=1.1))
    assert found.cause == "link"
    assert found.text == "the link from local/cpu0 to local for 1.05 s, 95% of the step"


def test_gradient_sums_that_all_wait_for_are_the_bottleneck() -> None:
    found = bottleneck(step((0, "compute", F, 0.0, 0.3), (0, "wait", AWAIT, 0.3, 1.0), seconds=1.0))
    assert found.cause == "gradient sums"
    assert found.text.startswith("waiting for gradient sums, stage 0 on local/cpu0 for 700 ms")


def test_a_rival_loses_by_its_slowest_stage() -> None:
    found = why_slower(step((0, "compute", F, 0.0, 1.3), seconds=1.5), BUSY)
    assert found.cause == "compute"
    assert "stage 0 on local/cpu0: 1.3 s against 800 ms" in found.text


def test_a_rival_loses_by_standing_idle() -> None:
    found = why_slower(step((1, "compute", F, 0.7, 1.5), seconds=1.5), BUSY)
    assert found.cause == "bubble"
    assert "700 ms against 200 ms), with 2 micro-batches to fill 2 positions" in found.text


def test_a_rival_that_stands_idle_behind_a_slow_link_loses_by_the_link() -> None:
    slow = step((1, "compute", F, 1.2, 2.0), (0, "send", SEND, 0.0, 1.2), seconds=2.0)
    found = why_slower(slow, BUSY)
    assert found.cause == "link"
    assert "the link from local/cpu0 to local 1.2 s against 0 s" in found.text


def test_a_rival_loses_by_messages_nothing_hides() -> None:
    found = why_slower(step((1, "compute", F, 0.8, 1.6), (1, "wait", F, 0.1, 0.8), seconds=1.6), BUSY)
    assert found.cause == "messages"
    assert "700 ms against 0 s" in found.text


def test_a_rival_loses_by_gradient_sums() -> None:
    found = why_slower(step((1, "compute", F, 0.0, 0.8), (1, "wait", AWAIT, 0.8, 1.8), seconds=1.8), BUSY)
    assert found.cause == "gradient sums"
    assert "1 s against 0 s" in found.text


def test_what_no_table_would_show_is_no_reason() -> None:
    assert why_slower(BUSY, BUSY).text == "as fast"
    assert why_slower(step((1, "compute", F, 0.0, 0.8), seconds=0.8), BUSY).text == "faster"


def test_what_does_not_fit_is_told_with_how_much_is_missing() -> None:
    room = PLAN.cluster.devices[0].memory_bytes
    fits = RankMemory(room, 0, 0, 0, 0)
    found = too_large(PLAN, (fits, RankMemory(room, 0, 0, 0, 3 * 2**30)))
    assert found is not None and found.cause == "memory"
    assert "3 GiB too much" in found.text and "local/cpu1" in found.text
    assert too_large(PLAN, (fits, fits)) is None
