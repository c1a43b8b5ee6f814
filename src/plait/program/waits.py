"""A program run with all its waits and without times: whoever cannot go on is in a cycle of waits."""

from collections import deque

from plait.program.instructions import Instruction, Op
from plait.program.program import Program

_Key = tuple[int, int, bool]  # stage, micro-batch, gradient
_Message = tuple[int, int]  # channel, number on it
# Looked up once: a member of an enumeration costs four times a plain name.
_SEND, _RECV, _FREE, _F = Op.SEND, Op.RECV, Op.FREE, Op.F
_COMPUTES_FROM_MESSAGES = frozenset({Op.F, Op.B, Op.I})
_COMPUTES = frozenset({Op.F, Op.B, Op.I, Op.W})
_REDUCES = frozenset({Op.REDUCE, Op.REDUCE_TIED})


def stuck_ranks(program: Program) -> list[tuple[int, int]]:
    """(rank, instruction) of every rank that never reaches its end. Linear in the instructions."""
    machine = _WaitMachine(program)
    machine.run()
    return [
        (rank, index)
        for rank, (index, instructions) in enumerate(zip(machine.position, program.ranks, strict=True))
        if index < len(instructions)
    ]


class _WaitMachine:
    """Ranks are advanced as far as they go; one that waits is woken by what it waits for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.num_ranks = len(program.ranks)
        self.position = [0] * self.num_ranks
        # Per channel (source * num_ranks + sink): sends and receives so far, and who waits for more of them.
        self.sent: dict[int, int] = {}
        self.posted: dict[int, int] = {}
        self.needs: list[dict[_Key, list[_Message]]] = [{} for _ in range(self.num_ranks)]
        self.unfreed: list[dict[_Key, list[_Message]]] = [{} for _ in range(self.num_ranks)]
        self.joined: dict[object, set[int]] = {}
        self.waiting: dict[object, list[int]] = {}
        self.inside: list[list[Instruction]] = [[] for _ in range(self.num_ranks)]  # the computation to come
        self.runnable = deque(range(self.num_ranks))

    def run(self) -> None:
        while self.runnable:
            self._advance(self.runnable.popleft())

    def _advance(self, rank: int) -> None:
        instructions = self.program.ranks[rank]
        position, end = self.position[rank], len(instructions)
        while position < end:
            instruction = instructions[position]
            op, stage, micro_batch, _, gradient, peer, _, _, inside = instruction
            if inside:
                self.inside[rank].append(instruction)
            elif op is _SEND:
                self._send(rank, instruction)
            elif op is _RECV:
                key = (stage, micro_batch, gradient)
                self._count(peer * self.num_ranks + rank, self.posted, self.needs[rank], key)
            elif op is _FREE:
                if not self._all_there(rank, self.unfreed[rank].get((stage, micro_batch, gradient)), self.posted):
                    break
            elif not self._do(rank, instruction):
                break
            position += 1
        self.position[rank] = position

    def _send(self, rank: int, ins: Instruction) -> None:
        key = (ins.stage, ins.micro_batch, ins.gradient)
        self._count(rank * self.num_ranks + ins.peer, self.sent, self.unfreed[rank], key)

    def _count(self, channel: int, counts: dict[int, int], book: dict[_Key, list[_Message]], key: _Key) -> None:
        """One more message on the channel, noted in the rank's book; who waited for it goes on."""
        number = counts.get(channel, 0)
        counts[channel] = number + 1
        noted = book.get(key)
        if noted is None:
            book[key] = [(channel, number)]
        else:
            noted.append((channel, number))
        if self.waiting:
            self.runnable += self.waiting.pop((counts is self.sent, channel), ())

    def _all_there(self, rank: int, messages: list[_Message] | None, counts: dict[int, int]) -> bool:
        for channel, number in messages or ():
            if counts.get(channel, 0) <= number:
                self.waiting.setdefault((counts is self.sent, channel), []).append(rank)
                return False
        return True

    def _do(self, rank: int, ins: Instruction) -> bool:
        """Does a computation or a collective if it need not wait; tells whether it was done."""
        if ins[0] in _COMPUTES:
            if not self._compute(rank, ins):
                return False
            if self.inside[rank]:
                self._do_inside(rank)
        elif ins.op in _REDUCES:
            self._join(rank, ins.name)
        elif ins.op is Op.AWAIT:
            # A rank that has not begun the sum waits for that of the step before, which all have begun.
            begun = rank in self.joined.get(ins.name, ())
            return not begun or self._all_joined(rank, ins.name, set(self.program.bucket_by_name[ins.name].ranks))
        elif ins.op in (Op.LOSS, Op.CLIP):
            return self._meet(rank, ins.op, set(range(self.num_ranks)))
        return True

    def _compute(self, rank: int, ins: Instruction) -> bool:
        op, number, micro_batch = ins[:3]
        if op in _COMPUTES_FROM_MESSAGES:
            needed = self.needs[rank].get((number, micro_batch, op is not _F))
            if not self._all_there(rank, needed, self.sent):
                return False
            stage = self.program.stages[number]
            if stage.coupled or stage.tensor > 1:
                others = stage.together(rank, micro_batch)
                return self._meet(rank, (*ins[:3], others[0]), set(others))
        return True

    def _do_inside(self, rank: int) -> None:
        """What happens inside a computation that need not wait."""
        for ins in self.inside[rank]:
            if ins.op is _SEND:
                self._send(rank, ins)
            elif ins.op in _REDUCES:
                self._join(rank, ins.name)
        self.inside[rank].clear()

    def _meet(self, rank: int, where: object, ranks: set[int]) -> bool:
        """All of `ranks` must be here before any goes on."""
        if rank not in self.joined.get(where, ()):
            self._join(rank, where)
        return self._all_joined(rank, where, ranks)

    def _join(self, rank: int, where: object) -> None:
        self.joined.setdefault(where, set()).add(rank)
        self.runnable += self.waiting.pop(where, ())

    def _all_joined(self, rank: int, where: object, ranks: set[int]) -> bool:
        if self.joined.get(where, set()) >= ranks:
            return True
        self.waiting.setdefault(where, []).append(rank)
        return False
