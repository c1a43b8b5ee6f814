"""The static check lets no wrong program pass, and shows where it is wrong."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import random_lanes
from mutations import MUTATIONS
from program_strategies import compiled, star

from plait.graph import Atom, Graph, Parameter, RowMixer, Value
from plait.plan import Plan, StagePlan, even_stages
from plait.program import Program, ProgramError, check_program, compile_program, format_program, parse_program


def error_of(program: Program) -> ProgramError:
    with pytest.raises(ProgramError) as caught:
        check_program(program)
    return caught.value


def assert_marked(program: Program, error: ProgramError) -> None:
    """The message shows ranks side by side with one cell marked, the one the error is about."""
    first, header, *grid = str(error).splitlines()
    assert first.startswith(f"program error on rank {error.rank}, instruction {error.index}: ")
    assert f"rank {error.rank}" in header
    marked = [line for line in grid if ">>" in line]
    assert len(marked) == 1
    assert int(marked[0].split()[0]) == error.index


@pytest.mark.parametrize("kind", MUTATIONS)
@given(made=compiled(), data=st.data())
@settings(max_examples=25, deadline=None)
def test_no_mutation_of_a_random_program_passes(kind, made, data):
    wrong = list(MUTATIONS[kind](made.program))
    if wrong:  # not every program has a sum, say, to leave out; the busy one below has everything
        chosen = wrong[data.draw(st.integers(0, len(wrong) - 1), label="which")]
        assert_marked(chosen, error_of(chosen))


def busy_program() -> Program:
    """Everything at once: replicas, several stages on some of them, halves of backwards, skips (one to two stages of
    a rank), a value without rows, a tied parameter, statistics, clipping."""
    graph = Graph(
        "busy",
        tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(5)),
        (
            Value("v0", 0, (1, 2), (1,), "float32", 0, True),
            Value("v1", 1, (2, 4), (1,), "float32", 0, True),
            Value("v2", 2, (3,), (1,), "float32", 0, True),
            Value("v3", 3, (4,), (1,), "float32", 0, True),
            Value("table", 0, (2, 3), (4,), "float32", None, True),
            Value("mask", 0, (1, 3), (1,), "bool", 0, False),
        ),
        (
            Parameter("p0", (4,), "float32", (0,), True, False),
            Parameter("p1", (4,), "float32", (1,), True, False),
            Parameter("tied", (4,), "float32", (0, 2), True, False),
        ),
        (RowMixer(2, "a2", "", "statistics", "exchange"),),
    )
    held = (((0, 1), (1.0, 2.0)), ((2,), (1.0,)), ((3, 4), (1.0, 1.0)))
    placement = (0, 1, 2, 0, 2)
    stages = tuple(StagePlan(n, n + 1, *held[place]) for n, place in enumerate(placement))
    lanes = random_lanes(placement, 2, split=(1, 2, 3))
    plan = Plan("busy", graph.fingerprint, star(5), 12, 2, "own", stages, lanes=lanes)
    return compile_program(plan, graph, clip=True)


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_mutation_of_a_busy_program_is_caught(kind):
    program = busy_program()
    check_program(program)
    wrong = list(MUTATIONS[kind](program))
    assert wrong
    for mutated in wrong:
        assert_marked(mutated, error_of(mutated))


# What only several changes at once can do


def edited(program: Program, *changes: tuple[str, str]) -> Program:
    """The program with these replacements made in its text, each of which must occur."""
    text = format_program(program)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return parse_program(text)


def pipeline(stages: int = 2, micro_batches: int = 2) -> Program:
    graph = Graph(
        "chain",
        tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(stages)),
        tuple(Value(f"v{n}", n, (n + 1,), (1,), "float32", 0, True) for n in range(stages - 1)),
        tuple(Parameter(f"p{n}", (4,), "float32", (n,), True, False) for n in range(stages)),
    )
    devices = [[n] for n in range(stages)]
    plan = Plan(
        "chain", graph.fingerprint, star(stages), 2 * micro_batches, micro_batches, "1f1b",
        even_stages(list(range(1, stages)), stages, devices),
    )  # fmt: skip
    return compile_program(plan, graph)


def test_a_message_sent_and_received_twice_is_caught():
    send, receive = "  SEND s0 m0 v0 rows 0:2 to 1\n", "  RECV s1 m0 v0 rows 0:2 from 0\n"
    error = error_of(edited(pipeline(), (send, send * 2), (receive, receive * 2)))
    assert "what has come before" in str(error)


def test_a_message_nobody_needs_is_caught_even_if_it_is_sent_and_received():
    program = edited(
        pipeline(),
        ("  SEND s0 m0 v0 rows 0:2 to 1\n", "  SEND s0 m0 v0 rows 0:2 to 1\n  SEND s0 m0 v0 rows 0:1 to 1\n"),
        ("  RECV s1 m0 v0 rows 0:2 from 0\n", "  RECV s1 m0 v0 rows 0:2 from 0\n  RECV s1 m0 v0 rows 0:1 from 0\n"),
    )
    assert "nobody needs" in str(error_of(program))


def test_rows_that_are_never_sent_are_caught_even_if_nobody_waits_for_them():
    program = edited(
        pipeline(),
        ("  SEND s0 m0 v0 rows 0:2 to 1\n", ""),
        ("  RECV s1 m0 v0 rows 0:2 from 0\n", ""),
        ("  FREE s0 m0\n", ""),
    )
    error = error_of(program)
    assert "v0 rows 0:2 of micro-batch 0 never arrives" in str(error)
    assert str(program.ranks[error.rank][error.index]) == "F s1 m0 rows 0:2"


def test_a_gradient_that_never_comes_back_is_caught():
    program = edited(
        pipeline(),
        ("  SEND s1 m1 d(v0) rows 0:2 to 0\n", ""),
        ("  RECV s0 m1 d(v0) rows 0:2 from 1\n", ""),
        ("  FREE s1 m1 d\n", ""),
    )
    assert "the gradient of v0 rows 0:2 of micro-batch 1 never arrives" in str(error_of(program))


def test_two_ranks_that_wait_for_each_other_are_a_deadlock():
    """Stage 0 goes back before it has sent all; stage 1 wants all before it goes back."""
    rank0 = """
      RECV s0 m0 d(v0) rows 0:2 from 1
      RECV s0 m1 d(v0) rows 0:2 from 1
      F s0 m0 rows 0:2
      SEND s0 m0 v0 rows 0:2 to 1
      B s0 m0 rows 0:2
      FREE s0 m0
      F s0 m1 rows 0:2
      SEND s0 m1 v0 rows 0:2 to 1
      B s0 m1 rows 0:2
      FREE s0 m1
      LOSS
      STEP s0.0
    """
    rank1 = """
      RECV s1 m0 v0 rows 0:2 from 0
      RECV s1 m1 v0 rows 0:2 from 0
      F s1 m0 rows 0:2
      F s1 m1 rows 0:2
      B s1 m0 rows 0:2
      SEND s1 m0 d(v0) rows 0:2 to 0
      B s1 m1 rows 0:2
      SEND s1 m1 d(v0) rows 0:2 to 0
      FREE s1 m0 d
      FREE s1 m1 d
      LOSS
      STEP s1.0
    """
    tables = format_program(pipeline()).split("rank 0")[0]
    program = parse_program(f"{tables}rank 0\n{rank0}\nrank 1\n{rank1}\n")
    error = error_of(program)
    assert "deadlock: B s0 m0 rows 0:2 waits for what can never happen" in str(error)
    assert_marked(program, error)


def test_coupled_replicas_that_take_micro_batches_in_different_orders_are_caught():
    program = busy_program()
    assert program.stages[2].coupled
    text = format_program(program)
    rank = program.stages[2].ranks[0]
    first = f"  F s2 m0 rows {program.stages[2].rows[0][0][0]}:{program.stages[2].rows[0][0][1]}\n"
    second = f"  F s2 m1 rows {program.stages[2].rows[1][0][0]}:{program.stages[2].rows[1][0][1]}\n"
    own = text.split(f"rank {rank}\n")[1].split("rank ")[0]
    swapped = own.replace(first, "#").replace(second, first).replace("#", second)
    error_of(parse_program(text.replace(own, swapped)))


def test_sums_of_one_group_must_start_in_one_order():
    graph = Graph(
        "two", (Atom("a0", "", ("a0",)),), (),
        tuple(Parameter(f"p{n}", (4,), "float32", (0,), True, False) for n in range(2)),
    )  # fmt: skip
    plan = Plan("two", graph.fingerprint, star(2), 2, 1, "1f1b", even_stages([], 1, [[0, 1]]), bucket_bytes=1)
    text = format_program(compile_program(replace(plan, overlap="off"), graph))
    before, after = text.split("rank 1\n")
    after = after.replace("REDUCE s0.0\n  REDUCE s0.1", "REDUCE s0.1\n  REDUCE s0.0")
    assert "starts s0.1 where rank 0" in str(error_of(parse_program(before + "rank 1\n" + after)))


def test_a_sum_used_but_awaited_only_before_it_begins_is_caught_on_a_rank_without_rows():
    graph = Graph("one", (Atom("a0", "", ("a0",)),), (), (Parameter("p0", (4,), "float32", (0,), True, False),))
    stage = StagePlan(0, 1, (0, 1), (1.0, 3.0))
    plan = Plan("one", graph.fingerprint, star(2), 2, 1, "1f1b", (stage,), overlap="off")
    program = compile_program(plan, graph)
    assert program.stages[0].rows[0][0] == (0, 0)
    text = format_program(program)
    started = "REDUCE s0.0\n  AWAIT s0.0"
    error = error_of(parse_program(text.replace(started, "AWAIT s0.0\n  REDUCE s0.0", 1)))
    assert "must be awaited and then stepped before" in str(error)


def test_the_grid_shows_at_most_six_ranks_around_the_wrong_one():
    program = pipeline(stages=12)
    (wrong, *_) = MUTATIONS["no LOSS"](program)
    last = list(MUTATIONS["no LOSS"](program))[-1]
    assert str(error_of(wrong)).splitlines()[1].split() == [w for n in range(6) for w in ("rank", str(n))]
    assert str(error_of(last)).splitlines()[1].split() == [w for n in range(6, 12) for w in ("rank", str(n))]
