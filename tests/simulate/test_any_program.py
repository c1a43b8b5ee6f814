"""What holds of the timeline of every program, however its stages are placed, split and ordered."""

from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings
from program_strategies import Compiled, compiled
from pytest import approx

from plait.program import COMPUTE, Instruction, Op
from plait.simulate import Span, Timeline, simulate, step_seconds

programs = given(compiled())
some = settings(max_examples=60, deadline=None)


def run(made: Compiled) -> Timeline:
    return simulate(made.program, made.plan, made.costs)


def sends(timeline: Timeline) -> dict[tuple[int, int], list[Span]]:
    """By sender and receiver, in the order in which they were put on the links."""
    found = defaultdict(list)
    for span in timeline.spans:
        if span.lane == "send":
            found[span.rank, span.what.peer].append(span)
    return found


def computations(timeline: Timeline) -> dict[tuple[int, Instruction], Span]:
    """One done in parts as a whole."""
    found: dict[tuple[int, Instruction], Span] = {}
    for span in timeline.spans:
        if span.lane == "compute" and span.what.op in COMPUTE:
            begun = found.get((span.rank, span.what), span)
            found[span.rank, span.what] = begun._replace(end=span.end)
    return found


@programs
@some
def test_the_seconds_of_a_step_are_those_of_its_timeline(made):
    assert step_seconds(made.program, made.plan, made.costs) == run(made).step_seconds


@programs
@some
def test_everything_computed_and_sent_is_in_the_timeline_in_the_programs_order(made):
    timeline = run(made)
    for rank, instructions in enumerate(made.program.ranks):
        for lane, ops in (("compute", COMPUTE), ("send", {Op.SEND})):
            own = [s.what for s in timeline.spans if s.rank == rank and s.lane == lane and s.what.op in ops]
            expected = [instruction for instruction in instructions if instruction.op in ops]
            if lane == "send":  # messages to different ranks may overtake one another
                own.sort(key=lambda send: send.peer)
                expected.sort(key=lambda send: send.peer)
            assert list(dict.fromkeys(own)) == expected


@programs
@some
def test_nothing_is_computed_before_all_it_needs_has_arrived(made):
    timeline = run(made)
    started = {
        (rank, what.stage, what.micro_batch, what.op is not Op.F): span.start
        for (rank, what), span in computations(timeline).items()
        if what.op is not Op.W  # the other half of a backward has waited already
    }
    arrivals = {flow: iter(spans) for flow, spans in sends(timeline).items()}
    for rank, instructions in enumerate(made.program.ranks):
        for ins in instructions:
            if ins.op is Op.RECV:
                arrived = next(arrivals[ins.peer, rank]).end
                assert arrived <= started[rank, ins.stage, ins.micro_batch, ins.gradient]


@programs
@some
def test_nothing_is_sent_before_it_is_made(made):
    timeline = run(made)
    made_at = {
        (rank, what.stage, what.micro_batch, what.op is not Op.F): span.end
        for (rank, what), span in computations(timeline).items()
        if what.op is not Op.W
    }
    for spans in sends(timeline).values():
        for span in spans:
            what = span.what
            assert made_at[span.rank, what.stage, what.micro_batch, what.gradient] <= span.start or what.inside


@programs
@some
def test_messages_between_two_ranks_arrive_in_the_order_in_which_they_are_sent(made):
    for spans in sends(run(made)).values():
        assert all(earlier.end <= later.end for earlier, later in pairwise(spans))


@programs
@some
def test_the_summary_of_a_rank_is_that_of_its_spans(made):
    timeline = run(made)
    for rank, summary in enumerate(timeline.ranks):
        own = [span for span in timeline.spans if span.rank == rank]
        assert summary.busy == approx(sum(span.end - span.start for span in own if span.lane == "compute"))
