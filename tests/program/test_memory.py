"""Predicted memory, worked out by hand, and the error that names the device that would run out."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from program_strategies import Compiled, compiled, star

from plait.cost import AtomCost, Costs, OptimizerCost
from plait.errors import PlaitError
from plait.graph import Atom, Graph, Parameter, Value
from plait.plan import Plan, even_stages
from plait.program import Op, RankMemory, check_memory, compile_program, predict_memory

GRAPH = Graph(
    "chain",
    tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(2)),
    (Value("v", 0, (1,), (1, 10), "float32", 0, True),),  # 40 bytes a row
    (
        Parameter("p0", (25,), "float32", (0,), True, False),  # 100 bytes
        Parameter("p1", (50,), "float32", (1,), True, False),  # 200 bytes
        Parameter("frozen", (5,), "float32", (1,), False, False),  # 20 bytes
        Parameter("buffer", (3,), "float32", (0,), False, True),  # 12 bytes
    ),
)
COSTS = Costs(
    GRAPH.fingerprint,
    {
        "unit": (
            AtomCost(0, 1, 0, 2, saved_fixed=8, saved_per_row=100),
            AtomCost(0, 1, 0, 2, saved_fixed=0, saved_per_row=50),
        )
    },
    {"unit": OptimizerCost(state_bytes_per_byte=2, seconds_per_byte=0, seconds_fixed=0)},
)


def memory(schedule: str, micro_batches: int) -> tuple[RankMemory, ...]:
    """Two stages, two rows a micro-batch."""
    stages = even_stages([1], 2, [[0], [1]])
    plan = Plan("chain", GRAPH.fingerprint, star(2), 2 * micro_batches, micro_batches, schedule, stages)
    return predict_memory(compile_program(plan, GRAPH), plan, GRAPH, COSTS)


def test_what_is_held_throughout_is_parameters_gradients_state_and_buffers():
    first, second = memory("1f1b", 1)
    assert (first.parameters, first.gradients, first.optimizer, first.buffers) == (100, 100, 200, 12)
    assert (second.parameters, second.gradients, second.optimizer, second.buffers) == (220, 200, 400, 0)


def test_one_micro_batch_holds_what_it_saved_and_its_messages():
    first, second = memory("1f1b", 1)
    # rank 0: saved 8 + 2 * 100, sent 2 * 40, and the buffer of the gradient that comes back 2 * 40
    assert first.activations == 208 + 80 + 80
    # rank 1: received 2 * 40, saved 2 * 50; after the backward only the gradient being sent is left
    assert second.activations == 80 + 100


def test_the_peak_is_everything_together():
    first, _ = memory("1f1b", 1)
    assert first.peak == 100 + 100 + 200 + 12 + 368


def test_gpipe_holds_all_micro_batches_and_1f1b_as_many_as_there_are_stages():
    per_micro_batch = 208 + 80  # saved and sent
    gpipe, _ = memory("gpipe", 8)
    flat, _ = memory("1f1b", 8)
    assert gpipe.activations >= 8 * per_micro_batch
    assert 2 * per_micro_batch <= flat.activations < 3 * per_micro_batch
    assert memory("1f1b", 80)[0].activations == flat.activations


@given(compiled(plain=True))
@settings(max_examples=60, deadline=None)
def test_a_rank_holds_at_least_what_its_largest_forward_saves_and_at_most_all_of_them(made: Compiled):
    for rank, held in enumerate(predict_memory(made.program, made.plan, made.graph, made.costs)):
        stage = made.program.stages[made.program.stages_of_rank(rank)[0]]
        saved = [
            made.costs.saved_bytes("unit", stage.start, stage.end, ins.rows)
            for ins in made.program.ranks[rank]
            if ins.op is Op.F
        ]
        messages = sum(
            made.program.edge_by_name[ins.name].value.num_bytes(ins.rows)
            for ins in made.program.ranks[rank]
            if ins.op in (Op.SEND, Op.RECV)
        )
        assert max(saved, default=0) <= held.activations <= sum(saved) + messages


def test_a_plan_that_fits_is_accepted():
    stages = even_stages([1], 2, [[0], [1]])
    check_memory(memory("1f1b", 1), Plan("chain", GRAPH.fingerprint, star(2), 2, 1, "1f1b", stages))


def test_the_device_that_would_run_out_is_named_with_what_it_needs_and_what_would_help():
    cluster = star(2)
    small = replace(cluster.devices[1], memory_bytes=500)
    cluster = replace(cluster, devices=(cluster.devices[0], small))
    plan = Plan("chain", GRAPH.fingerprint, cluster, 2, 1, "1f1b", even_stages([1], 2, [[0], [1]]))
    with pytest.raises(PlaitError, match=r"rank 1 on d1 would need .* GiB but the device has .*Use more stages"):
        check_memory(memory("1f1b", 1), plan)
