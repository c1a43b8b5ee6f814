"""Programs made wrong in one place: each function gives every wrong version of one kind."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from plait.program import COMPUTE, Instruction, Op, Program

Mutation = Callable[[Program], Iterator[Program]]
_MESSAGES = (Op.SEND, Op.RECV)
_BUCKET_OPS = (Op.REDUCE, Op.REDUCE_TIED, Op.AWAIT, Op.STEP)


def with_rank(program: Program, rank: int, instructions: list[Instruction]) -> Program:
    ranks = list(program.ranks)
    ranks[rank] = tuple(instructions)
    return replace(program, ranks=tuple(ranks))


def _places(program: Program, *ops: Op) -> Iterator[tuple[int, int, Instruction]]:
    for rank, instructions in enumerate(program.ranks):
        for index, ins in enumerate(instructions):
            if not ops or ins.op in ops:
                yield rank, index, ins


def _replaced(program: Program, rank: int, index: int, ins: Instruction) -> Program:
    instructions = list(program.ranks[rank])
    instructions[index] = ins
    return with_rank(program, rank, instructions)


def drop(op: Op) -> Mutation:
    def mutate(program: Program) -> Iterator[Program]:
        for rank, index, _ in _places(program, op):
            if op is Op.CLIP and len(program.ranks) == 1:
                continue  # a whole program without clipping
            instructions = list(program.ranks[rank])
            del instructions[index]
            yield with_rank(program, rank, instructions)

    return mutate


def duplicate(program: Program) -> Iterator[Program]:
    for rank, index, ins in _places(program):
        instructions = list(program.ranks[rank])
        yield with_rank(program, rank, [*instructions[: index + 1], ins, *instructions[index + 1 :]])


def other_rows(program: Program) -> Iterator[Program]:
    for rank, index, ins in _places(program, *_MESSAGES, *COMPUTE):
        yield _replaced(program, rank, index, ins._replace(last_row=ins.last_row + 1))
        yield _replaced(program, rank, index, ins._replace(first_row=ins.first_row - 1))
        if ins.rows > 1:
            yield _replaced(program, rank, index, ins._replace(first_row=ins.first_row + 1))


def other_peer(program: Program) -> Iterator[Program]:
    for rank, index, ins in _places(program, *_MESSAGES):
        for peer in (*range(len(program.ranks)), 99):
            if peer != ins.peer:
                yield _replaced(program, rank, index, ins._replace(peer=peer))


def other_name(program: Program) -> Iterator[Program]:
    values = [edge.value.name for edge in program.edges]
    buckets = [bucket.name for bucket in program.buckets]
    for rank, index, ins in _places(program, *_MESSAGES, *_BUCKET_OPS):
        for name in (*(values if ins.op in _MESSAGES else buckets), "unknown"):
            if name != ins.name:
                yield _replaced(program, rank, index, ins._replace(name=name))


def other_direction(program: Program) -> Iterator[Program]:
    for rank, index, ins in _places(program, *_MESSAGES, Op.FREE):
        yield _replaced(program, rank, index, ins._replace(gradient=not ins.gradient))


def other_micro_batch(program: Program) -> Iterator[Program]:
    for rank, index, ins in _places(program, *_MESSAGES, Op.FREE, *COMPUTE):
        for micro_batch in range(-1, len(program.micro_batch_rows) + 1):
            if micro_batch != ins.micro_batch:
                yield _replaced(program, rank, index, ins._replace(micro_batch=micro_batch))


def other_stage(program: Program) -> Iterator[Program]:
    for rank, index, ins in _places(program, *_MESSAGES, Op.FREE, *COMPUTE):
        for stage in range(-1, len(program.stages) + 1):
            if stage != ins.stage:
                yield _replaced(program, rank, index, ins._replace(stage=stage))


def other_kind_of_sum(program: Program) -> Iterator[Program]:
    other = {Op.REDUCE: Op.REDUCE_TIED, Op.REDUCE_TIED: Op.REDUCE}
    for rank, index, ins in _places(program, *other):
        yield _replaced(program, rank, index, ins._replace(op=other[ins.op]))


def on_another_rank(program: Program) -> Iterator[Program]:
    for rank, index, ins in _places(program):
        for other in range(len(program.ranks)):
            if other != rank:
                moved = drop_at(program, rank, index)
                yield with_rank(moved, other, [*moved.ranks[other][:index], ins, *moved.ranks[other][index:]])


def drop_at(program: Program, rank: int, index: int) -> Program:
    instructions = list(program.ranks[rank])
    del instructions[index]
    return with_rank(program, rank, instructions)


def swap_dependent(program: Program) -> Iterator[Program]:
    """Two instructions of a rank of which the second depends on the first."""
    for rank, instructions in enumerate(program.ranks):
        for (i, first), (j, second) in combinations(enumerate(instructions), 2):
            if depends(program, first, second):
                changed = list(instructions)
                changed[i], changed[j] = second, first
                yield with_rank(program, rank, changed)


def depends(program: Program, first: Instruction, second: Instruction) -> bool:
    same = first[1:3] == second[1:3]
    match first.op, second.op:
        case (Op.F, Op.F):
            # one device's order of its buffers' updates, or a value handed over
            earlier = first.stage == second.stage and first.micro_batch < second.micro_batch
            return earlier or _handed_over(program, first, second)
        case (Op.F, Op.B | Op.I):
            return same
        case (Op.B | Op.I, Op.B | Op.I):
            return _handed_over(program, second, first, gradient=True)
        case (Op.B | Op.I, Op.FREE) | (Op.I, Op.W):
            return same
        case (Op.F, Op.SEND):
            return same and not second.gradient
        case (Op.B | Op.I, Op.SEND):
            return same and second.gradient
        case (Op.RECV, Op.F):
            return same and not first.gradient
        case (Op.RECV, Op.B | Op.I):
            return same and first.gradient
        case (Op.SEND, Op.FREE):
            return same and first.gradient == second.gradient
        case (Op.SEND, Op.SEND) | (Op.RECV, Op.RECV):
            return first.peer == second.peer  # one channel: order is all that tells them apart
        case (Op.REDUCE | Op.REDUCE_TIED, Op.AWAIT) | (Op.AWAIT, Op.STEP):
            return first.name == second.name
        case (Op.B | Op.I | Op.W | Op.F, Op.STEP | Op.REDUCE | Op.REDUCE_TIED):
            return _reads(program, first.stage, second.name)
        case (Op.B | Op.I | Op.W | Op.F, Op.LOSS | Op.CLIP):
            return True
        case (Op.AWAIT, Op.CLIP) | (Op.CLIP, Op.STEP):
            return True
    return False


def _reads(program: Program, stage: int, bucket: str) -> bool:
    held = range(program.stages[stage].start, program.stages[stage].end)
    return any(first in held for first, _ in program.bucket_by_name[bucket].readers)


def _handed_over(program: Program, source: Instruction, sink: Instruction, *, gradient: bool = False) -> bool:
    """Does one stage give the other a value of this micro-batch on their rank, and get its gradient back?"""
    return source.micro_batch == sink.micro_batch and any(
        (found.source, found.sink) == (source.stage, sink.stage) and (found.value.requires_grad or not gradient)
        for found in program.hand_overs
    )


MUTATIONS: dict[str, Mutation] = {
    **{f"no {op}": drop(op) for op in Op},
    "twice": duplicate,
    "other rows": other_rows,
    "other peer": other_peer,
    "other name": other_name,
    "other direction": other_direction,
    "other micro-batch": other_micro_batch,
    "other stage": other_stage,
    "other kind of sum": other_kind_of_sum,
    "on another rank": on_another_rank,
    "dependent ones swapped": swap_dependent,
}
