"""Predicted memory, worked out by hand."""

from dataclasses import replace
from unittest import mock

from hypothesis import given, settings
from program_strategies import Compiled, compiled, star

import plait.program.memory
from plait.cost import AtomCost, AtomMemory, Costs, MemoryProfile, OptimizerCost, ValueMemory
from plait.graph import Atom, Graph, Parameter, Value
from plait.plan import Plan, even_stages
from plait.program import Op, RankMemory, StageMemory, batch_bytes, compile_program, predict_memory

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


def memory(
    schedule: str,
    micro_batches: int,
    *,
    on: list[list[int]] | None = None,
    boundaries: list[int] | None = None,
    lanes: tuple[str, ...] = (),
    recompute: bool = False,
    clip: bool = False,
    costs: Costs = COSTS,
) -> tuple[RankMemory, ...]:
    """Two stages, two rows a micro-batch."""
    devices = on or [[0], [1]]
    stages = even_stages([1] if boundaries is None else boundaries, 2, devices)
    stages = tuple(replace(stage, recompute=recompute) for stage in stages)
    cluster = star(1 + max(device for group in devices for device in group))
    plan = Plan("chain", GRAPH.fingerprint, cluster, 2 * micro_batches, micro_batches, schedule, stages, lanes=lanes)
    return predict_memory(compile_program(plan, GRAPH, clip=clip), plan, GRAPH, costs)


def assumed_profile(weight_inputs: float) -> MemoryProfile:
    atoms = tuple(
        AtomMemory(a.saved_fixed, a.saved_per_row, a.saved_fixed, a.saved_per_row, 0.0, weight_inputs)
        for a in COSTS.atoms["unit"]
    )
    return MemoryProfile(atoms, {"v": ValueMemory(saver=0, last=1)})


def test_what_is_held_throughout_is_parameters_gradients_state_and_buffers():
    first, second = memory("1f1b", 1)
    assert (first.parameters, first.gradients, first.optimizer, first.buffers) == (100, 100, 200, 12)
    assert (second.parameters, second.gradients, second.optimizer, second.buffers) == (220, 200, 400, 0)


def test_the_whole_batch_is_on_every_rank():
    description = {"dict": {"x": {"tensor": [4, 10], "dtype": "float32"}, "table": {"tensor": [7], "dtype": "int64"}}}
    assert batch_bytes(description, rows=12) == 12 * 10 * 4 + 7 * 8
    assert batch_bytes(None, rows=12) == 0


def test_one_micro_batch_holds_what_it_saved_and_its_messages():
    first, second = memory("1f1b", 1)
    # rank 0: saved 8 + 2 * 100, what it sends among it, and the buffer of the gradient that comes back 2 * 40
    assert first.activations == 208 + 80
    # rank 1: received 2 * 40, saved 2 * 50, and the gradient to be sent back 2 * 40
    assert second.activations == 80 + 100 + 80


def test_updating_a_parameter_may_need_more_than_the_activations():
    step = replace(COSTS.optimizer["unit"], step_bytes_per_byte=100)
    first, _ = memory("1f1b", 1, costs=replace(COSTS, optimizer={"unit": step}))
    assert first.activations == 100 * 100


def test_clipping_holds_a_bucket_in_float64():
    _, plain = memory("1f1b", 1)
    _, clipped = memory("1f1b", 1, clip=True)
    assert plain.activations < clipped.activations == 2 * 200


def test_the_peak_is_everything_together():
    first, _ = memory("1f1b", 1)
    assert first.peak == 100 + 100 + 200 + 12 + 288


def test_gpipe_holds_all_micro_batches_and_1f1b_as_many_as_there_are_stages():
    gpipe, _ = memory("gpipe", 8)
    flat, _ = memory("1f1b", 8)
    assert gpipe.activations >= 8 * 208
    assert 2 * 208 <= flat.activations <= 2 * 208 + 3 * 80  # and gradients that are waited for
    assert memory("1f1b", 80)[0].activations == flat.activations


def test_a_stage_that_recomputes_holds_one_micro_batch_whole_and_of_the_others_what_it_received():
    plain = memory("gpipe", 8)
    again = memory("gpipe", 8, recompute=True)
    assert again[1].activations == plain[1].activations - 7 * 100
    assert 8 * 80 + 208 <= again[0].activations < plain[0].activations  # what was sent has not been let go yet
    assert again[0].recomputed == plain[0].recomputed == again[0].activations - 3 * 80  # but for messages on their way


def test_stages_of_one_rank_hand_over_without_a_copy():
    (rank,) = memory("1f1b", 1, on=[[0], [0]], lanes=("0F0,1F0,1B0,0B0",))
    # stage 0 keeps 208 with the value in it, stage 1 its 100; then the gradient of the value, 80, beside the first
    assert rank.activations == 208 + 100 + 80


def test_a_backward_in_halves_keeps_what_weights_need_until_the_second():
    costs = replace(COSTS, memory={"unit": assumed_profile(weight_inputs=300)})
    late, soon = (
        memory("zb", 2, on=[[0]], boundaries=[], lanes=(lane,), costs=costs)[0].activations
        for lane in ("0F0,0I0,0F1,0I1,0W0,0W1", "0F0,0I0,0W0,0F1,0I1,0W1")
    )
    assert late == soon + 2 * 2 * 300  # two atoms, two rows


@given(compiled())
@settings(max_examples=60, deadline=None)
def test_ranks_that_are_taken_for_alike_hold_what_each_is_found_to_hold_by_itself(made: Compiled):
    together = predict_memory(made.program, made.plan, made.graph, made.costs)
    with mock.patch.object(plait.program.memory, "_looks", lambda *_: object()):
        assert predict_memory(made.program, made.plan, made.graph, made.costs) == together


@given(compiled())
@settings(max_examples=60, deadline=None)
def test_a_rank_holds_at_least_its_largest_micro_batch_and_at_most_all_with_all_messages(made: Compiled):
    stages = [
        StageMemory(made.graph, made.costs.on_group(s.start, s.end, s.tensor, s.split), "unit")
        for s in made.plan.stages
    ]
    for rank, held in enumerate(predict_memory(made.program, made.plan, made.graph, made.costs)):
        least, most = 0, 8 * held.gradients  # a bucket in float64, or a gradient that was put off
        for ins in made.program.ranks[rank]:
            if ins.op is Op.F:
                table = made.program.stages[ins.stage]
                one = stages[ins.stage].of(table.start, table.end, ins.rows, recompute=table.recompute)
                least = max(least, one.forward)
                most += one.kept + one.forward + one.backward + one.sent + 3 * (one.received + one.arriving)
            elif ins.op in (Op.SEND, Op.RECV):
                most += made.program.edge_by_name[ins.name].value.num_bytes(ins.rows)
        assert least <= held.activations <= most
