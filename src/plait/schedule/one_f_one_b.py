"""1F1B: after a warm-up, one forward and one backward in turn, so that at most S - s micro-batches are held."""

from plait.schedule.placement import check_fit
from plait.schedule.schedule import Action, Positions, Schedule


def one_f_one_b(positions: Positions, micro_batches: int) -> Schedule:
    """
    >>> [str(action) for action in one_f_one_b([[0], [1]], 3).lanes[0]]
    ['0F0', '0F1', '0B0', '0F2', '0B1', '0B2']
    """
    check_fit("1f1b", "line", positions, micro_batches)
    return Schedule("1f1b", tuple(_lane(stage, len(positions), micro_batches) for (stage,) in positions))


def _lane(stage: int, num_stages: int, micro_batches: int) -> tuple[Action, ...]:
    warm_up = min(num_stages - stage - 1, micro_batches)
    actions = [Action(stage, "F", m) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        actions += [Action(stage, "F", warm_up + m), Action(stage, "B", m)]
    actions += [Action(stage, "B", m) for m in range(micro_batches - warm_up, micro_batches)]
    return tuple(actions)
