"""The instructions: a small, closed set, each a tuple that round-trips with one line of text.

| text                                  | meaning                                                            |
| ------------------------------------- | ------------------------------------------------------------------ |
| `F s1 m0 rows 0:4`                    | forward of rows 0..3 of micro-batch 0 through stage 1              |
| `B s1 m0 rows 0:4`                    | its backward (`I`, `W`: input- and weight-gradient halves)         |
| `SEND s0 m0 add_3 rows 0:4 to 2`      | start sending these rows of a value to rank 2                      |
| `RECV s1 m0 add_3 rows 0:4 from 0`    | post the receive; whoever needs the value waits for it             |
| `SEND s1 m0 d(add_3) rows 0:4 to 0`   | the same for its gradient                                          |
| `REDUCE bucket`, `REDUCE_TIED bucket` | start summing a gradient bucket over its ranks                     |
| `AWAIT bucket`                        | wait for that sum                                                  |
| `CLIP`                                | global gradient norm over all ranks, gradients scaled              |
| `STEP bucket`                         | optimiser update of the bucket's parameters                        |
| `LOSS`                                | the batch's loss made known to every rank                          |
| `FREE s0 m0`, `FREE s0 m0 d`          | forget what was sent for a micro-batch (its gradients with `d`)    |

SEND and RECV never block. `F` waits for the values of its stage and micro-batch, `B` for their
gradients, `FREE` for its sends to have left.

What happens inside a computation comes right before it and names it:

| text                       | meaning                                                                              |
|----------------------------|--------------------------------------------------------------------------------------|
| `REDUCE bucket in s1 m7`   | start the sum in the backward (B or W) that follows, once the gradients are final    |
| `AWAIT bucket in s0 m0`,   | before the forward that follows reads a parameter of the bucket, wait for the sum of |
| `STEP bucket in s0 m0`     | the step before and update; sooner, where the rank has nothing else to do            |
| `SEND s0 m0 add_3 … in`    | start sending inside the forward that follows, once the value is there               |
"""

import re
from enum import StrEnum
from typing import NamedTuple

from plait.errors import PlaitError


class Op(StrEnum):
    F = "F"
    B = "B"
    I = "I"  # noqa: E741 - the name PyTorch's pipelining gives it
    W = "W"
    SEND = "SEND"
    RECV = "RECV"
    REDUCE = "REDUCE"
    REDUCE_TIED = "REDUCE_TIED"
    AWAIT = "AWAIT"
    CLIP = "CLIP"
    STEP = "STEP"
    LOSS = "LOSS"
    FREE = "FREE"


COMPUTE = frozenset({Op.F, Op.B, Op.I, Op.W})
_BUCKET_OPS = frozenset({Op.REDUCE, Op.REDUCE_TIED, Op.AWAIT, Op.STEP})


class Instruction(NamedTuple):
    op: Op
    stage: int = -1
    micro_batch: int = -1
    name: str = ""  # value or bucket
    gradient: bool = False
    peer: int = -1
    first_row: int = 0
    last_row: int = 0  # exclusive
    inside: bool = False  # the computation that follows

    @property
    def rows(self) -> int:
        return self.last_row - self.first_row

    def __str__(self) -> str:
        if self.op in _BUCKET_OPS:
            return f"{self.op} {self.name}" + (f" in s{self.stage} m{self.micro_batch}" if self.inside else "")
        if self.op in (Op.CLIP, Op.LOSS):
            return str(self.op)
        head = f"{self.op} s{self.stage} m{self.micro_batch}"
        if self.op is Op.FREE:
            return head + (" d" if self.gradient else "")
        rows = f"rows {self.first_row}:{self.last_row}"
        if self.op in COMPUTE:
            return f"{head} {rows}"
        value = f"d({self.name})" if self.gradient else self.name
        end = " in" if self.inside else ""
        return f"{head} {value} {rows} {'to' if self.op is Op.SEND else 'from'} {self.peer}{end}"


_COMPUTE = re.compile(r"([FBIW]) s(\d+) m(\d+) rows (\d+):(\d+)")
_MESSAGE = re.compile(r"(SEND|RECV) s(\d+) m(\d+) (d\()?([^\s()]+)\)? rows (\d+):(\d+) (?:to|from) (\d+)( in)?")
_BUCKET = re.compile(r"(REDUCE|REDUCE_TIED|AWAIT|STEP) (\S+)(?: in s(\d+) m(\d+))?")
_FREE = re.compile(r"FREE s(\d+) m(\d+)( d)?")


def parse_instruction(text: str) -> Instruction:
    """
    >>> str(parse_instruction("SEND s0 m1 d(add_3) rows 0:4 to 2"))
    'SEND s0 m1 d(add_3) rows 0:4 to 2'
    """
    text = text.strip()
    if match := _COMPUTE.fullmatch(text):
        return Instruction(Op(match[1]), int(match[2]), int(match[3]), first_row=int(match[4]), last_row=int(match[5]))
    if match := _MESSAGE.fullmatch(text):
        return Instruction(
            Op(match[1]),
            int(match[2]),
            int(match[3]),
            match[5],
            match[4] is not None,
            int(match[8]),
            int(match[6]),
            int(match[7]),
            match[9] is not None,
        )
    if match := _BUCKET.fullmatch(text):
        if match[3] is None:
            return Instruction(Op(match[1]), name=match[2])
        return Instruction(Op(match[1]), int(match[3]), int(match[4]), match[2], inside=True)
    if match := _FREE.fullmatch(text):
        return Instruction(Op.FREE, int(match[1]), int(match[2]), gradient=match[3] is not None)
    if text in (Op.CLIP, Op.LOSS):
        return Instruction(Op(text))
    raise PlaitError(f"{text!r} is not an instruction; see `plait.program.instructions` for the forms there are.")
