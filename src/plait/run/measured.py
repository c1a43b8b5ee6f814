"""From what ranks recorded to a measured timeline on the same axis as the simulated one."""

from collections.abc import Mapping, Sequence

from plait.program import Instruction, Op, Program
from plait.simulate import Cause, Span, Timeline, cause_of


def measured_timeline(program: Program, spans: Mapping[int, Sequence[Span]], *, same_clock: bool = True) -> Timeline:
    """One step as all ranks saw it. Ranks on several machines are aligned at the end of their LOSS."""
    offsets = dict.fromkeys(spans, 0.0)
    if not same_clock:
        offsets = {rank: _loss_end(own) for rank, own in spans.items()}
    shifted = [
        Span(s.rank, s.lane, s.what, s.start - offsets[r], s.end - offsets[r]) for r, own in spans.items() for s in own
    ]
    start = min(span.start for span in shifted)
    moved = [Span(s.rank, s.lane, s.what, s.start - start, s.end - start) for s in shifted]
    sends = {(s.rank, s.what): s.start for s in moved if s.lane == "send"}
    needed = _messages_by_computation(program)
    joined = _last_to_join(moved)
    final = [_only_exposed(span, sends, needed, joined) if span.lane == "wait" else span for span in moved]
    return Timeline("measured", len(program.ranks), tuple(final), max(span.end for span in moved))


def _loss_end(spans: Sequence[Span]) -> float:
    return next(span.end for span in reversed(spans) if span.what.op is Op.LOSS)


def _messages_by_computation(program: Program) -> dict[tuple[int, int, int, bool], list[tuple[int, Instruction]]]:
    """For each rank's computation, the sends on other ranks that feed it."""
    feeds: dict[tuple[int, int, int, bool], list[tuple[int, Instruction]]] = {}
    receiver = {
        (ins.peer, rank, ins.name, ins.gradient, ins.micro_batch, ins.first_row): (rank, ins.stage)
        for rank, instructions in enumerate(program.ranks)
        for ins in instructions
        if ins.op is Op.RECV
    }
    for rank, instructions in enumerate(program.ranks):
        for ins in instructions:
            if ins.op is Op.SEND:
                key = (rank, ins.peer, ins.name, ins.gradient, ins.micro_batch, ins.first_row)
                sink, stage = receiver[key]
                feeds.setdefault((sink, stage, ins.micro_batch, ins.gradient), []).append((rank, ins))
    return feeds


def _last_to_join(spans: Sequence[Span]) -> dict[Instruction, float]:
    """When a sum over ranks could begin: when the last of them had come to it."""
    joined: dict[Instruction, float] = {}
    for span in spans:
        meets = span.lane == "wait" and span.what.op in (Op.LOSS, Op.CLIP)
        if meets or span.lane == "reduce":
            joined[span.what] = max(joined.get(span.what, 0.0), span.start)
    return joined


def _only_exposed(
    wait: Span,
    sends: Mapping[tuple[int, Instruction], float],
    needed: Mapping[tuple[int, int, int, bool], list[tuple[int, Instruction]]],
    joined: Mapping[Instruction, float],
) -> Span:
    """A wait counts as communication from when the last of its data was sent; before, the peer was computing."""
    ins = wait.what
    if ins in joined:
        return Span(wait.rank, "wait", ins, min(max(wait.start, joined[ins]), wait.end), wait.end)
    if cause_of(ins) is not Cause.ACTIVATION:
        return wait  # for a sum of the step before: all ranks have begun it
    sources = needed.get((wait.rank, ins.stage, ins.micro_batch, ins.op is not Op.F), [])
    sent = max((sends[s] for s in sources if s in sends), default=wait.start)
    return Span(wait.rank, "wait", ins, min(max(wait.start, sent), wait.end), wait.end)
