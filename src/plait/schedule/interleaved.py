"""Interleaved 1F1B: position p of P holds stages p, p+P, p+2P, ..., so that the pipeline fills v times as fast.

Micro-batches go in rounds of at least P: a round passes a position's first stage, then its second, and so on;
backwards go through the stages in the opposite order. With rounds of R, position p runs (v-1) R + 2 (P-1-p) forwards
ahead, and then a forward and a backward in turn. Its bubble is (P-1)(F+B) of one stage, a v-th of 1F1B's.

A round of fewer than P leaves gaps, so the M micro-batches are dealt out to floor(M/P) rounds, and R = ceil(M / that).
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from plait.schedule.placement import check_fit
from plait.schedule.schedule import Action, Positions, Schedule


def interleaved(positions: Positions, micro_batches: int) -> Schedule:
    """
    >>> [str(action) for action in interleaved([[0, 2], [1, 3]], 2).lanes[1]]
    ['1F0', '1F1', '3F0', '3B0', '3F1', '3B1', '1B0', '1B1']
    """
    check_fit("interleaved", "loop", positions, micro_batches)
    size = len(positions)
    rounds = _rounds(size, micro_batches)
    return Schedule(
        "interleaved",
        tuple(
            _lane(stages, warm_up_forwards(position, size, len(stages), micro_batches), rounds)
            for position, stages in enumerate(positions)
        ),
    )


def warm_up_forwards(position: int, num_positions: int, stages_per_position: int, micro_batches: int) -> int:
    """How many forwards a position runs ahead of its backwards, if there are so many; with one stage those of 1F1B."""
    after = num_positions - 1 - position
    if stages_per_position == 1:
        return after
    return (stages_per_position - 1) * len(_rounds(num_positions, micro_batches)[0]) + 2 * after


def _rounds(num_positions: int, micro_batches: int) -> list[range]:
    """
    >>> _rounds(3, 8)
    [range(0, 4), range(4, 8)]
    """
    number = max(1, micro_batches // num_positions)
    sizes = [micro_batches // number + (index < micro_batches % number) for index in range(number)]
    return [range(first, end) for first, end in pairwise(accumulate(sizes, initial=0))]


def _lane(stages: Sequence[int], warm_up: int, rounds: Sequence[range]) -> tuple[Action, ...]:
    forwards = [Action(stage, "F", m) for turn in rounds for stage in stages for m in turn]
    backwards = [Action(stage, "B", m) for turn in rounds for stage in reversed(stages) for m in turn]
    warm_up = min(warm_up, len(forwards))
    actions = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        actions += [forward, backward]
    return (*actions, *backwards[len(forwards) - warm_up :])
