"""The noun `Schedule`: an order of actions per pipeline position, as data that round-trips with text.

The notation is PyTorch pipelining's: `2F0` is the forward of micro-batch 0 on stage 2, `B` the backward,
`I` and `W` its input- and weight-gradient halves.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from plait.errors import PlaitError

Kind = Literal["F", "B", "I", "W"]
Positions = Sequence[Sequence[int]]  # the stages of each position, in the order in which a micro-batch passes them


class Action(NamedTuple):
    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


def parse_action(text: str) -> Action:
    """
    >>> parse_action("2F0")
    Action(stage=2, kind='F', micro_batch=0)
    """
    match = re.fullmatch(r"(\d+)([FBIW])(\d+)", text.strip())
    if match is None:
        raise PlaitError(f"{text!r} is not an action; write stage, F, B, I or W, and micro-batch, as in 2F0.")
    return Action(int(match[1]), match[2], int(match[3]))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Schedule:
    """`lanes[p]` is what pipeline position p does, in order."""

    name: str
    lanes: tuple[tuple[Action, ...], ...]
