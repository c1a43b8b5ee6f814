"""Stages whose replicas are groups of devices that share each layer."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from program_strategies import Compiled, compiled, star

from plait.graph import Atom, Graph, Parameter, Value
from plait.graph.sharding import split_sizes
from plait.plan import Plan, StagePlan
from plait.program import Op, Program, ProgramError, check_program, compile_program, format_program, parse_program

GRAPH = Graph(
    "pair",
    tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(2)),
    (Value("v", 0, (1,), (1, 8), "float32", 0, True),),
    tuple(Parameter(f"p{n}", (5, 3), "float32", (n,), True, False) for n in range(2)),
)


def program(first: tuple[int, int], second: tuple[int, int], *, rows: int = 4, split: bool = True) -> Program:
    """Two stages of so many replicas on groups of so many devices."""
    stages, next_device = [], 0
    for number, (replicas, tensor) in enumerate((first, second)):
        devices = tuple(range(next_device, next_device + replicas * tensor))
        next_device += len(devices)
        how = {f"p{number}": 0} if split and tensor > 1 else {}
        stages.append(StagePlan(number, number + 1, devices, (1.0,) * replicas, tensor=tensor, split=how))
    plan = Plan("pair", GRAPH.fingerprint, star(next_device), rows, 1, "gpipe", tuple(stages))
    return compile_program(plan, GRAPH)


def sent(made: Program, *, gradient: bool) -> list[tuple[int, int, tuple[int, int]]]:
    return [
        (rank, ins.peer, (ins.first_row, ins.last_row))
        for rank, instructions in enumerate(made.ranks)
        for ins in instructions
        if ins.op is Op.SEND and ins.gradient is gradient
    ]


def test_every_device_of_a_group_gets_the_value_whole_from_one_that_makes_it():
    made = program((1, 2), (2, 4), rows=4)
    expected = [(0, 2, (0, 2)), (0, 4, (0, 2)), (0, 6, (2, 4)), (0, 8, (2, 4))]
    expected += [(1, 3, (0, 2)), (1, 5, (0, 2)), (1, 7, (2, 4)), (1, 9, (2, 4))]
    assert sent(made, gradient=False) == expected
    # of four that have the gradient, the first two give it back
    assert sent(made, gradient=True) == [(2, 0, (0, 2)), (3, 1, (0, 2)), (6, 0, (2, 4)), (7, 1, (2, 4))]


def test_a_wide_group_feeds_a_single_device_once_and_each_of_its_devices_gets_the_gradient():
    made = program((1, 3), (1, 1))
    assert sent(made, gradient=False) == [(0, 3, (0, 4))]
    assert sent(made, gradient=True) == [(3, rank, (0, 4)) for rank in range(3)]


def test_ranks_at_the_same_place_of_their_groups_sum_their_parts():
    made = program((2, 2), (1, 1))
    first, second = (bucket for bucket in made.buckets if bucket.stage == 0)
    assert (first.ranks, second.ranks) == ((0, 2), (1, 3))
    assert (first.num_bytes, second.num_bytes) == tuple(4 * 3 * size for size in split_sizes(5, 2))


def test_what_is_whole_is_whole_in_every_bucket():
    made = program((2, 2), (1, 1), split=False)
    assert [bucket.num_bytes for bucket in made.buckets if bucket.stage == 0] == [4 * 15, 4 * 15]


def test_the_text_of_a_program_tells_its_groups():
    made = program((2, 2), (1, 3))
    assert [stage.tensor for stage in made.stages] == [2, 3]
    assert parse_program(format_program(made)) == made


@given(compiled())
@settings(max_examples=60, deadline=None)
def test_every_device_of_a_group_has_every_input_and_every_gradient_once(made: Compiled):
    for number, table in enumerate(made.program.stages):
        for first in range(0, len(table.ranks), table.tensor):
            group = table.ranks[first : first + table.tensor]
            arrivals = [sorted(_received(made.program, rank, number)) for rank in group]
            assert all(found == arrivals[0] for found in arrivals)


def _received(made: Program, rank: int, stage: int) -> list[tuple[object, ...]]:
    return [
        (ins.name, ins.gradient, ins.micro_batch, ins.first_row, ins.last_row)
        for ins in made.ranks[rank]
        if ins.op is Op.RECV and ins.stage == stage
    ]


@pytest.mark.parametrize("tensor", [0, 3])
def test_ranks_that_make_no_whole_groups_are_caught(tensor):
    made = program((1, 2), (1, 1))
    with pytest.raises(ProgramError, match=f"the 2 ranks of stage 0 are no groups of {tensor}"):
        check_program(replace(made, stages=(replace(made.stages[0], tensor=tensor), made.stages[1])))


def test_ranks_of_a_group_with_other_rows_than_their_group_are_caught():
    made = program((2, 1), (1, 1))  # rows 0:2 and 2:4, which are no group
    check_program(made)
    with pytest.raises(ProgramError, match="ranks of a tensor group of stage 0 differ in their rows of micro-batch 0"):
        check_program(replace(made, stages=(replace(made.stages[0], tensor=2), made.stages[1])))


def test_devices_of_a_group_that_run_micro_batches_in_another_order_are_caught_as_a_deadlock():
    one = StagePlan(0, 2, (0, 1), (1.0,), tensor=2)
    made = compile_program(Plan("pair", GRAPH.fingerprint, star(2), 4, 2, "gpipe", (one,)), GRAPH)
    ranks = [list(instructions) for instructions in made.ranks]
    places = [index for index, ins in enumerate(ranks[1]) if ins.op is Op.B]
    ranks[1][places[0]], ranks[1][places[1]] = ranks[1][places[1]], ranks[1][places[0]]
    with pytest.raises(ProgramError, match="deadlock"):
        check_program(replace(made, ranks=tuple(map(tuple, ranks))))
