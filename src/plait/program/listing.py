"""A rank's instructions sorted by what they are, so that each rule of the check reads only its own."""

from dataclasses import dataclass, field

from plait.program.instructions import COMPUTE, Instruction, Op
from plait.program.program import Program

Placed = tuple[int, Instruction]
# Looked up once: a member of an enumeration costs four times a plain name.
_F, _B, _I, _SEND, _RECV, _FREE = Op.F, Op.B, Op.I, Op.SEND, Op.RECV, Op.FREE


@dataclass
class Listing:
    """Instructions with their indices; `place` is where a computation (first) stands."""

    rank: int
    computations: list[Placed] = field(default_factory=list)
    sends: list[Placed] = field(default_factory=list)
    receives: list[Placed] = field(default_factory=list)
    frees: list[Placed] = field(default_factory=list)
    collectives: list[Placed] = field(default_factory=list)  # sums, waits for them, steps, loss and norm
    inside: list[Placed] = field(default_factory=list)  # of those above, what happens inside the computation to come
    place: dict[tuple[Op, int, int], int] = field(default_factory=dict)

    def maker(self, stage: int, micro_batch: int, *, gradient: bool) -> int | None:
        """Where a value, or a gradient of the values received, is made; receives must be posted before it."""
        if not gradient:
            return self.place.get((_F, stage, micro_batch))
        found = self.place.get((_B, stage, micro_batch))
        return self.place.get((_I, stage, micro_batch)) if found is None else found


def listings(program: Program) -> list[Listing]:
    return [_listing(rank, instructions) for rank, instructions in enumerate(program.ranks)]


def _listing(rank: int, instructions: tuple[Instruction, ...]) -> Listing:
    found = Listing(rank)
    for placed in enumerate(instructions):
        op = placed[1][0]
        if placed[1][8]:
            found.inside.append(placed)
        if op is _SEND:
            found.sends.append(placed)
        elif op is _RECV:
            found.receives.append(placed)
        elif op is _FREE:
            found.frees.append(placed)
        elif op in COMPUTE:
            found.computations.append(placed)
            found.place.setdefault(placed[1][:3], placed[0])
        else:
            found.collectives.append(placed)
    return found
