"""What the static check raises: the reason, and where, among the instructions of all ranks."""

from plait.errors import PlaitError
from plait.program.program import Program


class ProgramError(PlaitError):
    """The program would hang, or would not compute the gradients of one device."""

    def __init__(self, program: Program, rank: int, index: int, why: str) -> None:
        self.rank, self.index = rank, index
        super().__init__(f"program error on rank {rank}, instruction {index}: {why}\n{grid(program, rank, index)}")


def grid(program: Program, rank: int, index: int, *, around: int = 3, width: int = 34) -> str:
    """Instructions of all ranks (at most six) near one cell, which is marked with `>>`."""
    shown = sorted({rank, *range(len(program.ranks))}, key=lambda r: abs(r - rank))[:6]
    shown.sort()
    first = max(0, index - around)
    lines = ["      " + "".join(f"rank {r}".ljust(width) for r in shown)]
    for row in range(first, index + around + 1):
        cells = []
        for r in shown:
            text = str(program.ranks[r][row]) if row < len(program.ranks[r]) else ""
            marked = r == rank and row == index
            cells.append((f">>{text}<<" if marked else text)[: width - 2].ljust(width))
        lines.append(f"{row:5d} " + "".join(cells))
    return "\n".join(line.rstrip() for line in lines)
