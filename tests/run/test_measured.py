"""What ranks recorded, put together: a wait counts as communication from when its data was under way."""

from small_runs import case, chain, star

from plait.program import Program, parse_instruction
from plait.run.measured import measured_timeline
from plait.simulate import Cause, Span, Timeline, exposures


def program() -> Program:
    """Two stages, the second on two devices, two rows a micro-batch."""
    return case(chain(2, parameter=8), star(3), [1, 2], micro_batches=2, rows=2).program


def put_together(*records: tuple[int, str, str, float, float]) -> Timeline:
    spans: dict[int, list[Span]] = {}
    for rank, lane, what, start, end in records:
        spans.setdefault(rank, []).append(Span(rank, lane, parse_instruction(what), start, end))
    return measured_timeline(program(), spans)


def send_to_the_second_stage() -> str:
    return next(str(what) for what in program().ranks[0] if what.op == "SEND" and what.peer == 1)


def test_waiting_for_a_rank_that_computes_is_not_waiting_for_its_message() -> None:
    timeline = put_together(
        (0, "compute", "F s0 m0 rows 0:2", 0, 3),
        (0, "send", send_to_the_second_stage(), 3, 3),
        (1, "wait", "F s1 m0 rows 0:1", 0, 4),
    )
    assert exposures(timeline)[1].exposed == {Cause.ACTIVATION: 1}


def test_waiting_for_a_rank_that_has_yet_to_join_is_not_waiting_for_the_sum() -> None:
    timeline = put_together(
        (1, "wait", "AWAIT s1.0", 0, 5),
        (1, "reduce", "AWAIT s1.0", 0, 5),
        (2, "compute", "B s1 m1 rows 1:2", 0, 3),
        (2, "wait", "AWAIT s1.0", 3, 5),
        (2, "reduce", "AWAIT s1.0", 3, 5),
    )
    assert [own.exposed.get(Cause.GRADIENT) for own in exposures(timeline)] == [None, 2, 2]


def test_a_sum_of_the_step_before_is_waited_for_though_messages_come_later() -> None:
    """The micro-batch it is awaited in has messages of its own, which have nothing to do with it."""
    message = next(str(what) for what in program().ranks[1] if what.op == "SEND" and what.gradient)
    timeline = put_together(
        (0, "wait", "AWAIT s0.0 in s0 m0", 0, 2),
        (0, "compute", "F s0 m0 rows 0:2", 2, 3),
        (1, "send", message, 6, 6),
        (0, "wait", "B s0 m0 rows 0:2", 3, 7),
    )
    assert exposures(timeline)[0].exposed == {Cause.GRADIENT: 2, Cause.ACTIVATION: 1}
