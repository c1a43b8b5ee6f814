"""Exposed communication, in timelines that can be checked by hand: ten seconds, one rank looked at."""

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx, mark
from small_runs import case, chain, instruction, star

from plait.simulate import Cause, Exposure, Record, Timeline, cause_of, exposed_seconds, exposures
from plait.simulate.intervals import common, length, union

F0, F1, B0, B1 = (f"{op} s0 m{m} rows 0:1" for op in "FB" for m in (0, 1))
SUM, AWAIT = "REDUCE s0.0", "AWAIT s0.0"
TIED_SUM, TIED_AWAIT = "REDUCE_TIED tied.0", "AWAIT tied.0"


def at(lane: str, what: str, start: float, end: float, *, rank: int = 0) -> Record:
    return rank, lane, instruction(what), start, end


def of(*records: Record) -> Exposure:
    return exposures(Timeline("simulated", 2, records, 10.0))[0]


def data_parallel(*communication: Record) -> Exposure:
    """Two micro-batches, one after the other until 6, and an update at the end."""
    computed = [at("compute", F0, 0, 1), at("compute", B0, 1, 3), at("compute", F1, 3, 4), at("compute", B1, 4, 6)]
    return of(*computed, *communication, at("compute", "STEP s0.0", 9.5, 10))


# What is waited for


@mark.parametrize(
    ("waiting", "cause"),
    [
        (F0, "activation"),
        (B0, "activation"),
        ("I s0 m0 rows 0:1", "activation"),
        ("FREE s0 m0", "activation"),
        ("FREE s0 m0 d", "activation"),
        (AWAIT, "gradient"),
        (TIED_AWAIT, "tied"),
        ("LOSS", "other ranks"),
        ("CLIP", "other ranks"),
    ],
)
def test_the_instruction_that_waits_tells_the_cause(waiting: str, cause: str):
    assert cause_of(instruction(waiting)) == cause


def test_the_compiled_sum_of_a_tied_parameter_has_its_cause():
    assert cause_of(instruction(TIED_SUM)) is Cause.TIED
    assert cause_of(instruction(SUM)) is Cause.GRADIENT


# What is exposed


def test_waits_are_counted_by_cause():
    own = data_parallel(at("wait", AWAIT, 6, 8), at("wait", TIED_AWAIT, 8, 8.5), at("wait", "LOSS", 8.5, 9.5))
    assert own.exposed == {Cause.GRADIENT: 2, Cause.TIED: 0.5, Cause.OTHERS: 1}
    assert own.total == 3.5


def test_a_wait_during_a_computation_is_not_exposed():
    assert data_parallel(at("wait", AWAIT, 5, 8)).exposed == {Cause.GRADIENT: 2}


def test_a_moment_of_two_waits_counts_once_for_the_first():
    own = data_parallel(at("wait", AWAIT, 6, 8), at("wait", TIED_AWAIT, 7, 9), at("wait", "LOSS", 7, 7.5))
    assert own.exposed == {Cause.GRADIENT: 2, Cause.TIED: 1}


def test_the_wait_of_another_rank_is_its_own():
    records = (at("wait", AWAIT, 6, 8, rank=1), at("compute", F0, 0, 1))
    first, second = exposures(Timeline("simulated", 2, records, 10.0))
    assert (first.total, second.total) == (0, 2)


# What could be hidden


def test_a_sum_after_everything_could_have_run_beside_last_backward_first_forward_and_update():
    own = data_parallel(at("reduce", SUM, 6, 9.5), at("wait", AWAIT, 6, 9.5))
    assert own.exposed[Cause.GRADIENT] == 3.5
    assert own.room[Cause.GRADIENT] == 1 + 2 + 0.5
    assert own.hideable[Cause.GRADIENT] == 3.5
    assert own.hidden[Cause.GRADIENT] == 0


def test_a_sum_that_takes_longer_than_these_is_hideable_only_in_part():
    own = data_parallel(at("reduce", SUM, 4, 9.5), at("wait", AWAIT, 6, 9.5))
    assert own.communication[Cause.GRADIENT] == 5.5
    assert own.hidden[Cause.GRADIENT] == 2
    assert own.room[Cause.GRADIENT] == 1 + 0.5  # the last backward has the sum beside it already
    assert own.hideable[Cause.GRADIENT] == 1.5


def test_tied_parameters_get_the_room_that_gradients_leave():
    sums = at("reduce", SUM, 6, 8.5), at("reduce", TIED_SUM, 8.5, 9.5)
    own = data_parallel(*sums, at("wait", AWAIT, 6, 8.5), at("wait", TIED_AWAIT, 8.5, 9.5))
    assert (own.hideable[Cause.GRADIENT], own.hideable[Cause.TIED]) == (2.5, 1)
    assert own.total_hideable == 3.5


def test_only_the_halves_that_make_weight_gradients_make_them_final():
    halves = [
        at("compute", "F s0 m0 rows 0:1", 0, 1),
        at("compute", "I s0 m0 rows 0:1", 1, 2),
        at("compute", "W s0 m0 rows 0:1", 2, 5),
    ]
    assert of(*halves, at("reduce", SUM, 5, 10), at("wait", AWAIT, 5, 10)).room[Cause.GRADIENT] == 1 + 3


def test_a_computation_in_parts_is_one():
    parts = [
        at("compute", F0, 0, 1),
        at("wait", AWAIT, 1, 2),
        at("compute", "STEP s0.0", 2, 2.5),
        at("compute", F0, 2.5, 3.5),
        at("compute", F1, 3.5, 5.5),
        at("compute", B0, 5.5, 6),
        at("compute", B1, 6, 7),
        at("compute", "STEP s0.1", 7, 7.5),
        at("compute", B1, 7.5, 9),
    ]
    own = of(*parts)
    assert own.exposed == {Cause.GRADIENT: 1}
    assert own.room[Cause.GRADIENT] == (1 + 0.5 + 1) + (1 + 0.5 + 1.5)


def test_what_a_sum_leaves_to_the_next_step_is_hidden_there():
    own = data_parallel(at("reduce", SUM, 5, 11), at("wait", AWAIT, 0.75, 0.75))
    assert own.exposed.get(Cause.GRADIENT, 0.0) == 0
    assert own.communication[Cause.GRADIENT] == 6
    assert own.hidden[Cause.GRADIENT] == (6 - 5) + (10 - 9.5) + 1  # the last is the first forward of the next step


def pipeline(*communication: Record) -> Exposure:
    """Stage 0 of two micro-batches, with time between the computations."""
    computed = [at("compute", F0, 1, 2), at("compute", F1, 3, 4), at("compute", B0, 6, 7), at("compute", B1, 8, 9)]
    return of(*computed, *communication)


def test_a_message_could_have_come_beside_other_micro_batches():
    own = pipeline(at("wait", B0, 4, 6), at("send", "SEND s1 m0 d(v) rows 0:1 to 0", 3.5, 6, rank=1))
    assert own.exposed[Cause.ACTIVATION] == 2
    assert own.communication[Cause.ACTIVATION] == 2.5
    assert own.hidden[Cause.ACTIVATION] == 0.5
    assert own.room[Cause.ACTIVATION] == 3.5
    assert own.hideable[Cause.ACTIVATION] == 2  # of the other micro-batch are F and B, 1 each


def test_a_micro_batch_cannot_hide_its_own_messages():
    only = at("compute", F0, 0, 3), at("compute", B0, 8, 9)
    assert of(*only, at("wait", B0, 3, 8)).hideable[Cause.ACTIVATION] == 0


def test_filling_and_emptying_the_pipeline_cannot_be_hidden():
    own = pipeline(at("wait", F0, 0, 1), at("wait", "FREE s0 m1 d", 9, 10))
    assert own.exposed[Cause.ACTIVATION] == 2
    assert own.hideable[Cause.ACTIVATION] == 0


def test_the_number_of_all_ranks_cannot_be_hidden():
    own = data_parallel(at("wait", "LOSS", 6, 9))
    assert own.exposed == {Cause.OTHERS: 3}
    assert own.total_hideable == 0


# Simulated


def test_a_simulated_sum_behind_the_last_backward_is_exposed_and_hideable():
    timeline = case(chain(1, parameter=6), star(2, bandwidth=3, latency=0.25), [2], rows=2).run()
    for own in exposures(timeline):  # F 0..1, B 1..3, sum 3..5.5
        assert own.exposed == {Cause.GRADIENT: approx(2.5)}
        assert own.hideable[Cause.GRADIENT] == approx(2.5)


def test_causes_add_up_to_what_the_timeline_calls_exposed():
    graph = chain(3, skips=[(0, 2)], parameter=8)
    timeline = case(graph, star(4, bandwidth=3, latency=0.25), [1, 2, 1], micro_batches=3, rows=2).run(step=0.5)
    for own, summary in zip(exposures(timeline), timeline.ranks, strict=True):
        assert own.total == approx(summary.exposed_communication)
        assert own.total_hideable <= own.total


@given(
    bandwidth=st.floats(0.5, 50),
    layout=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    micro_batches=st.integers(1, 4),
)
def test_communication_is_hidden_or_exposed(bandwidth, layout, micro_batches):
    cluster = star(sum(layout), bandwidth=bandwidth, latency=0.1)
    made = case(chain(4, parameter=8), cluster, layout, micro_batches=micro_batches, rows=3)
    for own in exposures(made.run(step=0.5)):
        for cause in (Cause.GRADIENT, Cause.TIED):
            assert own.hidden[cause] + own.exposed.get(cause, 0.0) <= own.communication[cause] + 1e-9
        assert all(0 <= seconds <= own.exposed.get(cause, 0.0) + 1e-9 for cause, seconds in own.hideable.items())


def test_one_ranks_records_are_enough_for_what_it_waited():
    records = [at("compute", F0, 0, 1), at("wait", AWAIT, 0.5, 3), at("wait", F1, 3, 4)]
    assert exposed_seconds(records) == {Cause.GRADIENT: 2, Cause.ACTIVATION: 1}


# Intervals

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def moments(intervals: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in intervals for moment in range(start, end)}


@given(INTERVALS, INTERVALS)
def test_unions_and_common_parts_are_those_of_sets(one, other):
    assert length(union(one)) == len(moments(one))
    assert length(common(union(one), union(other))) == len(moments(one) & moments(other))
