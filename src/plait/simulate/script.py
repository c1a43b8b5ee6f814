"""Programs made ready for the engine: which send meets which receive, and what each instruction waits for.

That depends on the program alone, so it is worked out once for each, with however many plans, clusters and costs it
is then simulated.
"""

import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from plait.program import Instruction, Op, Program

# Looked up once: a member of an enumeration costs four times a plain name.
_F, _B, _I, _W, _SEND, _RECV, _FREE, _AWAIT = Op.F, Op.B, Op.I, Op.W, Op.SEND, Op.RECV, Op.FREE, Op.AWAIT
_REDUCES = (Op.REDUCE, Op.REDUCE_TIED)

_Key = tuple[int, int, bool]  # stage, micro-batch, gradient
_Queues = list[defaultdict[int, deque[int]]]


class Work(NamedTuple):
    """All that the seconds of a computation on one rank depend on."""

    op: Op
    stage: int
    rows: int


class Load(NamedTuple):
    """All that the seconds of a message depend on."""

    source: int
    sink: int
    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's instructions, with two columns beside them.

    `numbers` holds a computation's index in `works`, or the number of the message sent or received. `waits` holds the
    moments before which an instruction cannot go on. Messages have even numbers: message m has left at moment m, for
    which a FREE waits, and has arrived at moment m + 1, for which a computation waits.
    """

    instructions: Sequence[Instruction]
    numbers: Sequence[int]
    waits: Sequence[Sequence[int]]
    works: Sequence[Work]
    carried: Sequence[str]  # buckets whose sums of the step before are awaited in this one, in that order


Sent = tuple[Instruction, int]  # the SEND and the index of its load


@dataclass(frozen=True, slots=True)
class Script:
    """Message m is `messages[m // 2]`: None where a RECV has no SEND."""

    parts: Sequence[Part]
    messages: Sequence[Sent | None]
    loads: Sequence[Load]

    @property
    def carries(self) -> bool:
        """Does a step begin with sums of the one before?"""
        return any(part.carried for part in self.parts)


_kept: dict[int, Script] = {}


def script_of(program: Program) -> Script:
    """Kept while the program lives, by its identity: comparing programs takes longer than writing a script."""
    found = _kept.get(id(program))
    if found is None:
        found = _kept[id(program)] = _Writer(len(program.ranks)).write(program)
        weakref.finalize(program, _kept.pop, id(program), None).atexit = False
    return found


class _Writer:
    def __init__(self, num_ranks: int) -> None:
        self.messages: list[Sent | None] = []
        self.loads: dict[tuple[int, int, str, int], int] = {}
        # Messages of which one side has been found, in order: by the other side, then by the side that was found.
        self.unsent: _Queues = [defaultdict(deque) for _ in range(num_ranks)]
        self.unreceived: _Queues = [defaultdict(deque) for _ in range(num_ranks)]

    def write(self, program: Program) -> Script:
        parts = [self._part(rank, instructions) for rank, instructions in enumerate(program.ranks)]
        return Script(parts, self.messages, [Load(*load) for load in self.loads])

    def _part(self, rank: int, instructions: Sequence[Instruction]) -> Part:
        numbers: list[int] = []
        waits: list[Sequence[int]] = []
        works: dict[tuple[Op, int, int], int] = {}
        needed: dict[_Key, tuple[int, ...]] = {}  # by computations to come
        unfreed: dict[_Key, tuple[int, ...]] = {}
        nothing: tuple[int, ...] = ()
        messages, loads = self.messages, self.loads
        unsent, unreceived = self.unsent[rank], self.unreceived[rank]
        awaited: dict[str, None] = {}
        carried: set[str] = set()
        for instruction in instructions:
            op, stage, micro_batch, name, gradient, peer, first, last, _ = instruction
            number, moments = -1, nothing
            if op is _RECV:
                if unreceived[peer]:
                    number = unreceived[peer].popleft()
                else:
                    number = 2 * len(messages)
                    messages.append(None)
                    self.unsent[peer][rank].append(number)
                key = stage, micro_batch, gradient
                needed[key] = (*needed.get(key, ()), number + 1)
            elif op is _SEND:
                message = instruction, loads.setdefault((rank, peer, name, last - first), len(loads))
                if unsent[peer]:
                    number = unsent[peer].popleft()
                    messages[number >> 1] = message
                else:
                    number = 2 * len(messages)
                    messages.append(message)
                    self.unreceived[peer][rank].append(number)
                key = stage, micro_batch, gradient
                unfreed[key] = (*unfreed.get(key, ()), number)
            elif op is _FREE:
                moments = unfreed.pop((stage, micro_batch, gradient), ())
            elif op is _F or op is _B or op is _I or op is _W:
                number = works.setdefault((op, stage, last - first), len(works))
                moments = needed.pop((stage, micro_batch, op is not _F), ())
            elif op is _AWAIT:
                awaited[name] = None
            elif name in awaited and op in _REDUCES:
                carried.add(name)
            numbers.append(number)
            waits.append(moments)
        return Part(
            instructions, numbers, waits, [Work(*work) for work in works], [name for name in awaited if name in carried]
        )
