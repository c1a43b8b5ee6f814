"""Which stages a schedule wants at which position."""

from collections.abc import Sequence
from typing import Literal

from plait.errors import PlaitError
from plait.schedule.schedule import Positions

Placement = Literal["line", "loop", "vee"]

_RULES: dict[Placement, str] = {
    "line": "has stage p at position p",
    "loop": "has stages p, p+P, p+2P, ... at position p of P",
    "vee": "has stages p and 2P-1-p at position p of P",
}


def place(placement: Placement, num_positions: int, stages_per_position: int) -> tuple[tuple[int, ...], ...]:
    """The stages of each position, in the order in which a micro-batch comes to them.

    >>> place("loop", 2, 2), place("vee", 2, 2)
    (((0, 2), (1, 3)), ((0, 3), (1, 2)))
    """
    last = num_positions * stages_per_position - 1
    if placement == "vee":
        return tuple((p, last - p) for p in range(num_positions))
    return tuple(tuple(range(p, last + 1, num_positions)) for p in range(num_positions))


def check_number(name: str, placement: Placement, stages_per_position: int) -> None:
    """Raises PlaitError where the schedule cannot have so many stages at each position."""
    if placement == "line" and stages_per_position != 1:
        raise PlaitError(
            f"schedule {name} has one stage at each position, not {stages_per_position}. Use interleaved or zb-v, or "
            "give each stage devices of its own."
        )
    if placement == "vee" and stages_per_position != 2:
        raise PlaitError(
            f"schedule {name} has two stages at each position, not {stages_per_position}. Use two, or interleaved, "
            "which takes any number."
        )
    if stages_per_position < 1:
        raise PlaitError(f"schedule {name} has a stage at each position, not {stages_per_position}. Use one or more.")


def check_fit(name: str, placement: Placement, positions: Positions, micro_batches: int) -> None:
    """Raises PlaitError where the stages are not where the schedule wants them, or there is nothing to run."""
    if micro_batches < 1 or not positions:
        raise PlaitError(
            f"schedule {name} of {micro_batches} micro-batches on {len(positions)} positions does nothing. Use at "
            "least one of each."
        )
    for stages in positions:
        check_number(name, placement, len(stages))
    if len(set(map(len, positions))) > 1:
        raise PlaitError(
            f"schedule {name} has equally many stages at each position, but these hold "
            f"{', '.join(str(len(stages)) for stages in positions)}. Move stages, or use lanes of your own."
        )
    wanted = place(placement, len(positions), len(positions[0]))
    for position, (stages, right) in enumerate(zip(positions, wanted, strict=True)):
        if tuple(stages) != right:
            raise PlaitError(
                f"schedule {name} {_RULES[placement]}, so position {position} of {len(positions)} holds "
                f"{_listed(right)}, not {_listed(stages)}. Give the stages to the devices in that order."
            )


def _listed(stages: Sequence[int]) -> str:
    return ", ".join(map(str, stages))
