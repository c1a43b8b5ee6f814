"""A program's text form round-trips exactly; what is no program is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_strategies import compiled

from plait.errors import PlaitError
from plait.program import COMPUTE, Instruction, Op, format_program, parse_instruction, parse_program

numbers = st.integers(0, 10**6)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,20}", fullmatch=True)


@st.composite
def instructions(draw: st.DrawFn) -> Instruction:
    op = draw(st.sampled_from(list(Op)))
    if op in COMPUTE:
        return Instruction(op, draw(numbers), draw(numbers), first_row=draw(numbers), last_row=draw(numbers))
    if op in (Op.SEND, Op.RECV):
        where = draw(numbers), draw(numbers), draw(names), draw(st.booleans())
        return Instruction(op, *where, draw(numbers), draw(numbers), draw(numbers))
    if op is Op.FREE:
        return Instruction(op, draw(numbers), draw(numbers), gradient=draw(st.booleans()))
    if op in (Op.LOSS, Op.CLIP):
        return Instruction(op)
    return Instruction(op, name=draw(names))


@given(instructions())
def test_an_instruction_round_trips_through_its_text(instruction):
    assert parse_instruction(str(instruction)) == instruction


@given(compiled())
@settings(max_examples=60, deadline=None)
def test_a_program_round_trips_through_its_text(made):
    text = format_program(made.program)
    assert parse_program(text) == made.program
    assert format_program(parse_program(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "G s0 m0 rows 0:1",
        "F s0 m0",
        "SEND s0 m0 v rows 0:1",
        "RECV s0 m0 v rows 0:1 to",
        "STEP",
        "F s0 m0 rows 0-1",
    ],
)
def test_what_is_no_instruction_is_refused(text):
    with pytest.raises(PlaitError, match="is not an instruction"):
        parse_instruction(text)


@pytest.mark.parametrize("text", ["", "plait-program 2\n", "rank 0\n  LOSS\n"])
def test_what_does_not_start_like_a_program_is_refused(text):
    with pytest.raises(PlaitError, match="a program starts with 'plait-program 1'"):
        parse_program(text)


@pytest.mark.parametrize("line", ["stage {", 'stage {"start": 0}', "micro-batches x", "LOSS", "rank 0\n  HALT"])
def test_a_line_that_cannot_be_read_is_named(line):
    number = 2 + line.count("\n")
    with pytest.raises(PlaitError, match=f"line {number} of the program cannot be read"):
        parse_program(f"plait-program 1\n{line}\n")
