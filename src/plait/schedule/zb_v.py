"""ZB-V: position p of P holds stages p and 2P-1-p, so a gradient starts where it is needed first.

Both ends of the model are at position 0. With F = I = W = 1 no position is ever idle between its first action and its
last, in the memory of 1F1B: at most 2P micro-batches of half a position's layers each.

The order by hand needs 2P-1 micro-batches to get going. With fewer, it is that of a sweep in the same memory.
"""

from collections import Counter

from plait.schedule.placement import check_fit
from plait.schedule.schedule import Action, Kind, Positions, Schedule
from plait.schedule.sweep import no_time, sweep


def zb_v(positions: Positions, micro_batches: int) -> Schedule:
    """
    >>> [str(action) for action in zb_v([[0, 1]], 1).lanes[0]]
    ['0F0', '1F0', '1I0', '1W0', '0I0', '0W0']
    """
    check_fit("zb-v", "vee", positions, micro_batches)
    size = len(positions)
    if micro_batches < 2 * size - 1:
        limits = [2 * size] * size
        swept = sweep(positions, micro_batches, transfer_seconds=no_time, limits=limits, split=True)
        return Schedule("zb-v", swept.lanes)
    return Schedule("zb-v", tuple(_lane(near, far, size, micro_batches) for near, far in positions))


def _lane(near: int, far: int, size: int, micro_batches: int) -> tuple[Action, ...]:
    """`near` is the position's stage on the way in (the number of the position, too), `far` that on the way out."""
    to_turn = size - near  # positions from here to the turn of the V
    near_f, near_i, near_w = _kinds(near)
    far_f, far_i, far_w = _kinds(far)
    near_back, far_through = [near_i, near_w], [far_f, far_i, far_w]
    order = (
        [near_f] * (2 * to_turn - 1)  # until the first micro-batch is back from the turn
        + [far_f, near_f] * near  # until its gradient is here
        + far_through * to_turn  # until that is back from the turn
        + [near_f, *near_back, *far_through] * (micro_batches - 2 * size + 1 + near)
        + [*near_back, *far_through] * (size - 1 - near)
        + [near_i, far_i] * near  # weight gradients wait: others wait for these
        + near_back * to_turn
        + [far_w] * near
        + [near_w] * near
    )
    passed: Counter[tuple[int, Kind]] = Counter()
    actions = []
    for step in order:
        actions.append(Action(*step, passed[step]))
        passed[step] += 1
    return tuple(actions)


def _kinds(stage: int) -> tuple[tuple[int, Kind], tuple[int, Kind], tuple[int, Kind]]:
    return (stage, "F"), (stage, "I"), (stage, "W")
