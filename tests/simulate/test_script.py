"""Programs made ready for the engine: what meets what, what waits for what, and for how long it is kept."""

import gc

from small_runs import Case, case, chain, costs, hand_written, star

from plait.program import Op
from plait.simulate import script as scripts
from plait.simulate import simulate, step_seconds
from plait.simulate.script import Script, script_of


def two_stages(*ranks: str) -> Case:
    made = case(chain(2), star(2), [1, 1], micro_batches=2)
    return hand_written(made, *ranks) if ranks else made


def numbers(script: Script, rank: int, op: Op) -> list[int]:
    part = script.parts[rank]
    return [number for ins, number in zip(part.instructions, part.numbers, strict=True) if ins.op is op]


def waits(script: Script, rank: int, text: str) -> list[int]:
    part = script.parts[rank]
    (found,) = [moments for ins, moments in zip(part.instructions, part.waits, strict=True) if str(ins) == text]
    return list(found)


def test_sends_and_receives_between_two_ranks_match_in_order():
    script = script_of(two_stages().program)
    assert numbers(script, 0, Op.SEND) == numbers(script, 1, Op.RECV)
    assert numbers(script, 1, Op.SEND) == numbers(script, 0, Op.RECV)
    assert len({*numbers(script, 0, Op.SEND), *numbers(script, 1, Op.SEND)}) == 4


def test_a_computation_waits_for_its_messages_to_arrive_and_a_free_for_them_to_have_left():
    script = script_of(two_stages().program)
    first, second = numbers(script, 0, Op.SEND)
    assert waits(script, 1, "F s1 m0 rows 0:1") == [first + 1]
    assert waits(script, 0, "FREE s0 m0") == [first]
    assert waits(script, 1, "F s1 m1 rows 0:1") == [second + 1]
    assert waits(script, 0, "FREE s0 m1") == [second]


def test_the_second_half_of_a_backward_waits_for_nothing():
    receive = "F s0 m0 rows 0:1\nRECV s0 m0 d(v0) rows 0:1 from 1\nI s0 m0 rows 0:1\nW s0 m0 rows 0:1"
    script = script_of(two_stages(receive, "SEND s1 m0 d(v0) rows 0:1 to 0").program)
    assert waits(script, 0, "I s0 m0 rows 0:1") == [numbers(script, 1, Op.SEND)[0] + 1]
    assert waits(script, 0, "W s0 m0 rows 0:1") == []


def test_a_receive_without_its_send_is_a_message_never_sent():
    script = script_of(two_stages("F s0 m0 rows 0:1", "RECV s1 m0 v0 rows 0:1 from 0\nF s1 m0 rows 0:1").program)
    assert list(script.messages) == [None]


def test_messages_of_one_value_and_size_between_two_ranks_are_one_load():
    script = script_of(two_stages().program)
    assert len(script.messages) == 4
    assert [tuple(load) for load in script.loads] == [(0, 1, "v0", 1), (1, 0, "v0", 1)]


def test_a_script_is_written_once():
    made = two_stages()
    assert script_of(made.program) is script_of(made.program)


def test_a_script_goes_with_its_program():
    made = two_stages()
    key = id(made.program)
    script_of(made.program)
    assert key in scripts._kept
    del made
    gc.collect()
    assert key not in scripts._kept


def test_a_program_simulated_before_takes_the_new_costs_and_plan():
    made, slow = two_stages(), case(chain(2), star(2, bandwidth=2), [1, 1], micro_batches=2)
    made.run()
    for plan, forward in ((made.plan, 3.0), (slow.plan, 1.0)):
        again = simulate(made.program, plan, costs(made.graph, forward=forward))
        fresh = simulate(two_stages().program, plan, costs(made.graph, forward=forward))
        assert again == fresh
        assert step_seconds(made.program, plan, costs(made.graph, forward=forward)) == fresh.step_seconds
