"""Any plan compiles to a program that is proved right, runs to its end and updates every parameter once."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from program_strategies import Compiled, compiled, star
from pytest import approx

from plait.errors import PlaitError
from plait.graph import Atom, Graph, Parameter, Value
from plait.plan import Plan, even_stages
from plait.program import COMPUTE, Instruction, Op, Program, check_program, compile_program
from plait.simulate import simulate

EXAMPLES = settings(max_examples=100, deadline=None)


@given(compiled())
@EXAMPLES
def test_every_compiled_program_is_proved_right(made):
    check_program(made.program)


@given(compiled())
@EXAMPLES
def test_every_compiled_program_runs_to_its_end(made):
    timeline = simulate(made.program, made.plan, made.costs)
    # One may be computed in parts, and an update may come sooner than where it stands.
    ran = {(span.rank, what_of(span.what)) for span in timeline.spans if span.lane in ("compute", "send")}
    listed = {
        (rank, what_of(ins))
        for rank, instructions in enumerate(made.program.ranks)
        for ins in instructions
        if ins.op in COMPUTE or ins.op in (Op.SEND, Op.STEP)
    }
    assert ran == listed


def what_of(ins: Instruction) -> object:
    return (ins.op, ins.name) if ins.op is Op.STEP else ins


@given(compiled())
@EXAMPLES
def test_no_simulated_step_is_shorter_than_the_work_of_its_busiest_rank(made):
    timeline = simulate(made.program, made.plan, made.costs)
    assert timeline.step_seconds >= max(work(made, rank) for rank in range(len(made.program.ranks))) - 1e-9


def work(made: Compiled, rank: int) -> float:
    """Seconds of everything the rank computes, on a device of its own."""
    seconds = 0.0
    for ins in made.program.ranks[rank]:
        if ins.op in COMPUTE:
            stage = made.program.stages[ins.stage]
            phases = {Op.F: ["forward"], Op.B: ["backward"], Op.I: ["input"], Op.W: ["weight"]}[ins.op]
            again = ["forward"] if stage.recompute and ins.op in (Op.B, Op.I) else []
            own = made.plan.stages[ins.stage]
            costs = made.costs.on_group(own.start, own.end, own.tensor, own.split)
            for phase in phases + again:
                seconds += costs.seconds("unit", phase, stage.start, stage.end, ins.rows)
        elif ins.op is Op.STEP:
            bucket = made.program.bucket_by_name[ins.name]
            seconds += made.costs.optimizer["unit"].seconds(bucket.num_bytes, len(bucket.parameters))
    return seconds


@given(compiled())
@EXAMPLES
def test_every_trained_parameter_is_stepped_once_on_every_rank_that_holds_it(made):
    trained = {p.name: p for p in made.graph.parameters if p.trainable}
    for rank, instructions in enumerate(made.program.ranks):
        stepped = Counter(
            name
            for ins in instructions
            if ins.op is Op.STEP
            for name in made.program.bucket_by_name[ins.name].parameters
        )
        held = {
            name
            for name, parameter in trained.items()
            for index in made.program.stages_of_rank(rank)
            if any(made.plan.stages[index].start <= atom < made.plan.stages[index].end for atom in parameter.atoms)
        }
        assert stepped == Counter(held)


@given(compiled())
@EXAMPLES
def test_buckets_hold_all_trained_bytes_once_at_every_place_of_a_tensor_group(made):
    trained = {p.name: p for p in made.graph.parameters if p.trainable}
    held = {name: [b for b in made.program.buckets if name in b.parameters] for name in trained}
    for name, buckets in held.items():
        stage = next(s for s in made.plan.stages if s.start <= trained[name].atoms[0] < s.end)
        assert len(buckets) == stage.tensor
        holders = [rank for bucket in buckets for rank in bucket.ranks]
        assert len(holders) == len(set(holders))
    bucket_bytes = sum(bucket.num_bytes for bucket in made.program.buckets)
    wholes = sum(
        trained[name].num_bytes * (1 if _splits(made, name) else len(buckets)) for name, buckets in held.items()
    )
    assert bucket_bytes == wholes


def _splits(made: Compiled, name: str) -> bool:
    return any(name in stage.split for stage in made.plan.stages)


@given(compiled())
@EXAMPLES
def test_every_row_goes_through_every_stage_once_on_every_device_of_a_tensor_group(made):
    seen: Counter[tuple[Op, int, int, int]] = Counter()
    for instructions in made.program.ranks:
        for ins in instructions:
            if ins.op in COMPUTE:
                seen.update((ins.op, ins.stage, ins.micro_batch, row) for row in range(ins.first_row, ins.last_row))
    split = {stage for op, stage, _, _ in seen if op is Op.W}
    assert seen == Counter(
        (op, stage, m, row)
        for stage, table in enumerate(made.program.stages)
        for _ in range(table.tensor)
        for op in ([Op.F, Op.I, Op.W] if stage in split else [Op.F, Op.B])
        for m, rows in enumerate(made.program.micro_batch_rows)
        for row in range(rows)
    )


# Small cases in full


def chain(atoms: int) -> Graph:
    return Graph(
        "chain",
        tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(atoms)),
        tuple(Value(f"v{n}", n, (n + 1,), (1,), "float32", 0, True) for n in range(atoms - 1)),
        tuple(Parameter(f"p{n}", (4,), "float32", (n,), True, False) for n in range(atoms)),
    )


def program(
    graph: Graph, devices: list[list[int]], *, rows: int, micro_batches: int, clip: bool = False, **options: Any
) -> Program:
    edges = [len(graph.atoms) * n // len(devices) for n in range(1, len(devices))]
    stages = even_stages(edges, len(graph.atoms), devices)
    cluster = star(sum(map(len, devices)))
    plan = Plan("chain", graph.fingerprint, cluster, rows, micro_batches, "1f1b", stages, **options)
    return compile_program(plan, graph, clip=clip)


def lines(made: Program, rank: int) -> list[str]:
    return list(map(str, made.ranks[rank]))


def test_a_single_device_only_computes_and_steps():
    assert lines(program(chain(2), [[0]], rows=3, micro_batches=1), 0) == [
        "F s0 m0 rows 0:3",
        "B s0 m0 rows 0:3",
        "STEP s0.0",
        "LOSS",
    ]


def test_a_pipeline_of_two_posts_receives_a_few_computations_ahead():
    made = program(chain(2), [[0], [1]], rows=4, micro_batches=2)
    assert lines(made, 0) == [
        "RECV s0 m0 d(v0) rows 0:2 from 1",
        "RECV s0 m1 d(v0) rows 0:2 from 1",
        "F s0 m0 rows 0:2",
        "SEND s0 m0 v0 rows 0:2 to 1",
        "F s0 m1 rows 0:2",
        "SEND s0 m1 v0 rows 0:2 to 1",
        "B s0 m0 rows 0:2",
        "FREE s0 m0",
        "B s0 m1 rows 0:2",
        "FREE s0 m1",
        "STEP s0.0",
        "LOSS",
    ]
    assert lines(made, 1) == [
        "RECV s1 m0 v0 rows 0:2 from 0",
        "RECV s1 m1 v0 rows 0:2 from 0",
        "F s1 m0 rows 0:2",
        "B s1 m0 rows 0:2",
        "SEND s1 m0 d(v0) rows 0:2 to 0",
        "F s1 m1 rows 0:2",
        "B s1 m1 rows 0:2",
        "SEND s1 m1 d(v0) rows 0:2 to 0",
        "FREE s1 m0 d",
        "FREE s1 m1 d",
        "STEP s1.0",
        "LOSS",
    ]


def test_replicas_sum_their_gradients_and_clip_before_they_step():
    made = program(chain(1), [[0, 1]], rows=5, micro_batches=1, clip=True)
    assert lines(made, 0) == [
        "F s0 m0 rows 0:2",
        "REDUCE s0.0 in s0 m0",
        "B s0 m0 rows 0:2",
        "AWAIT s0.0",
        "LOSS",
        "CLIP",
        "STEP s0.0",
    ]
    assert lines(made, 1)[0] == "F s0 m0 rows 2:5"


def test_sums_begin_inside_the_last_backward_and_are_used_inside_the_next_forward():
    made = program(chain(2), [[0, 1]], rows=4, micro_batches=2, bucket_bytes=1)
    assert lines(made, 0) == [
        "AWAIT s0.1 in s0 m0",
        "STEP s0.1 in s0 m0",
        "AWAIT s0.0 in s0 m0",
        "STEP s0.0 in s0 m0",
        "F s0 m0 rows 0:1",
        "B s0 m0 rows 0:1",
        "F s0 m1 rows 0:1",
        "REDUCE s0.0 in s0 m1",
        "REDUCE s0.1 in s0 m1",
        "B s0 m1 rows 0:1",
        "LOSS",
    ]
    assert lines(program(chain(2), [[0, 1]], rows=4, micro_batches=2, bucket_bytes=1, overlap="backward"), 0)[3:] == [
        "REDUCE s0.0 in s0 m1",
        "REDUCE s0.1 in s0 m1",
        "B s0 m1 rows 0:1",
        "AWAIT s0.0",
        "STEP s0.0",
        "AWAIT s0.1",
        "STEP s0.1",
        "LOSS",
    ]
    assert lines(program(chain(2), [[0, 1]], rows=4, micro_batches=2, bucket_bytes=1, overlap="off"), 0)[4:] == [
        "REDUCE s0.0",
        "REDUCE s0.1",
        "AWAIT s0.0",
        "AWAIT s0.1",
        "LOSS",
        "STEP s0.0",
        "STEP s0.1",
    ]


def test_sums_that_would_wait_for_the_links_go_as_the_next_step_needs_them():
    graph = chain(4)
    (stage,) = even_stages([], 4, [[0, 1]])
    for overlap, order in (("full", "3 0 1 2"), ("backward", "3 2 1 0")):
        stages = (replace(stage, sum_order=(0, 3, 2, 1)),)
        plan = Plan("chain", graph.fingerprint, star(2), 2, 1, "1f1b", stages, bucket_bytes=1, overlap=overlap)
        made = compile_program(plan, graph)
        check_program(made)
        begun = [made.bucket_by_name[ins.name].parameters[0][1:] for ins in made.ranks[0] if ins.op is Op.REDUCE]
        assert " ".join(begun) == order


def test_an_order_of_sums_that_leaves_a_bucket_out_is_refused():
    graph = chain(4)
    (stage,) = even_stages([], 4, [[0, 1]])
    for order in ((0, 3, 2), (0, 1, 2, 2), (1, 2, 3, 4)):
        stages = (replace(stage, sum_order=order),)
        plan = Plan("chain", graph.fingerprint, star(2), 2, 1, "1f1b", stages, bucket_bytes=1)
        with pytest.raises(PlaitError, match=r"sum_order .* numbers 0 to 3"):
            compile_program(plan, graph)


def test_weight_gradients_that_were_put_off_are_final_from_the_first_atom_on():
    graph = chain(4)
    stages = even_stages([2], 4, [[0, 1], [2, 3]])
    plan = Plan("chain", graph.fingerprint, star(4), 4, 2, "zb-h1", stages, bucket_bytes=1)
    made = lines(compile_program(plan, graph), 2)
    last = max(index for index, line in enumerate(made) if line.startswith("W s1"))
    assert made[last - 2 : last] == ["REDUCE s1.1 in s1 m1", "REDUCE s1.0 in s1 m1"]


def test_a_value_made_before_its_stage_ends_is_sent_inside_the_forward():
    graph = chain(4)
    skip = Value("skip", 0, (2,), (1,), "float32", 0, True)
    graph = Graph(graph.name, graph.atoms, (*graph.values, skip), graph.parameters)
    assert lines(program(graph, [[0], [1]], rows=1, micro_batches=1), 0)[2:5] == [
        "SEND s0 m0 skip rows 0:1 to 1 in",
        "F s0 m0 rows 0:1",
        "SEND s0 m0 v1 rows 0:1 to 1",
    ]


def test_a_stage_on_two_devices_feeds_one_on_three_with_each_row_once():
    made = program(chain(2), [[0, 1], [2, 3, 4]], rows=6, micro_batches=1)
    sends = [text for rank in (0, 1) for text in lines(made, rank) if text.startswith("SEND")]
    assert sends == [
        "SEND s0 m0 v0 rows 0:2 to 2",
        "SEND s0 m0 v0 rows 2:3 to 3",
        "SEND s0 m0 v0 rows 3:4 to 3",
        "SEND s0 m0 v0 rows 4:6 to 4",
    ]


def test_a_tied_parameter_has_a_bucket_over_all_its_holders():
    graph = chain(2)
    tied = Parameter("tied", (2,), "float32", (0, 1), True, False)
    graph = Graph(graph.name, graph.atoms, graph.values, (*graph.parameters, tied))
    made = program(graph, [[0], [1]], rows=2, micro_batches=1)
    (bucket,) = [b for b in made.buckets if b.tied]
    assert (bucket.parameters, bucket.ranks, bucket.num_bytes) == (("tied",), (0, 1), 8)
    assert "REDUCE_TIED tied.0" in lines(made, 0)


def test_parameters_of_two_types_are_not_in_one_bucket():
    graph = chain(1)
    other = Parameter("half", (2,), "bfloat16", (0,), True, False)
    graph = Graph(graph.name, graph.atoms, graph.values, (*graph.parameters, other))
    made = program(graph, [[0]], rows=2, micro_batches=1)
    assert [bucket.parameters for bucket in made.buckets] == [("half",), ("p0",)]


def test_a_short_batch_runs_in_fewer_micro_batches():
    graph = chain(2)
    plan = Plan("chain", graph.fingerprint, star(4), 16, 4, "1f1b", even_stages([1], 2, [[0, 1], [2, 3]]))
    short = compile_program(plan, graph, batch_rows=5)
    assert short.micro_batch_rows == (3, 2)
    check_program(short)


def test_simulated_work_of_one_device_is_exactly_its_costs():
    made = Compiled(
        chain(3), Plan("chain", chain(3).fingerprint, star(1), 6, 2, "gpipe", even_stages([], 3, [[0]])), None
    )
    made = Compiled(made.graph, made.plan, compile_program(made.plan, made.graph))
    assert simulate(made.program, made.plan, made.costs).step_seconds == approx(work(made, 0))
