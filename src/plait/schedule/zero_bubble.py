"""ZB-H1 and ZB-H2: the weight-gradient half of a backward waits until there would be nothing else to do.

With F = I = W = 1 stage s of S runs `ahead` forwards before its first backward, and then in turn a forward, an `I`,
and the `W` of `behind` micro-batches before. In flight are ahead + 1 + behind.

    ZB-H1   ahead = S-1-s                     behind = s               S in flight, as 1F1B
    ZB-H2   ahead = S-1-s + min(S-1-s, x)     behind = s + min(s, x)   2S-1 in flight, where x = S-1

ZB-H1 fills the bubble at a lane's end with weight gradients; S-1 of idle time are left while the first gradient is on
its way. ZB-H2 fills those with x = S-1 more forwards. With M < 2S-1 micro-batches there are not so many, and x = M-S
leaves a lane S-1-x of idle time and the step as long: 3M + S-1.
"""

from plait.schedule.placement import check_fit
from plait.schedule.schedule import Action, Positions, Schedule


def zb_h1(positions: Positions, micro_batches: int) -> Schedule:
    """
    >>> [str(action) for action in zb_h1([[0], [1]], 3).lanes[1]]
    ['1F0', '1I0', '1F1', '1I1', '1W0', '1F2', '1I2', '1W1', '1W2']
    """
    return _zero_bubble("zb-h1", positions, micro_batches, extra=0)


def zb_h2(positions: Positions, micro_batches: int) -> Schedule:
    """
    >>> [str(action) for action in zb_h2([[0], [1]], 3).lanes[0]]
    ['0F0', '0F1', '0F2', '0I0', '0W0', '0I1', '0W1', '0I2', '0W2']
    """
    most = len(positions) - 1
    return _zero_bubble("zb-h2", positions, micro_batches, extra=max(0, min(micro_batches - len(positions), most)))


def _zero_bubble(name: str, positions: Positions, micro_batches: int, *, extra: int) -> Schedule:
    check_fit(name, "line", positions, micro_batches)
    lanes = []
    for (stage,) in positions:
        after = len(positions) - 1 - stage
        lanes.append(_lane(stage, after + min(after, extra), stage + min(stage, extra), micro_batches))
    return Schedule(name, tuple(lanes))


def _lane(stage: int, ahead: int, behind: int, micro_batches: int) -> tuple[Action, ...]:
    forwards, inputs, weights = ([Action(stage, kind, m) for m in range(micro_batches)] for kind in ("F", "I", "W"))
    actions = forwards[:ahead]
    for m, backward in enumerate(inputs):
        actions += forwards[m + ahead : m + ahead + 1]
        actions.append(backward)
        if m >= behind:
            actions.append(weights[m - behind])
    return (*actions, *weights[max(0, micro_batches - behind) :])
