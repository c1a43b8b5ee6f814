"""What is proved of a schedule before it is used: everything is done once, by the right lane, in an order that can run.

1. `_holders`: stages are numbered from 0, each at one position.
2. `_check_lane`: an action is in the lane that holds its stage; the forwards of a stage come in the order of the
   micro-batches (BatchNorm statistics are updated in it); F before B or I, I before W, nothing twice.
3. `_check_complete`: every micro-batch goes through every stage and back.
4. `_check_waits`: lanes do not wait for one another in a circle.
"""

from collections.abc import Sequence

from plait.errors import PlaitError
from plait.schedule.clock import Lanes, needed, play
from plait.schedule.schedule import Action, Positions, Schedule

_BEFORE = {"B": "F", "I": "F", "W": "I"}
_Latest = dict[tuple[int, int], str]  # by stage and micro-batch, the kind of the latest action


def check_schedule(schedule: Schedule, positions: Positions, micro_batches: int) -> None:
    """Raises PlaitError with the lane, the action and the rule at the first thing that is wrong. Linear."""
    holders = _holders(positions)
    if len(schedule.lanes) != len(positions):
        raise PlaitError(
            f"schedule {schedule.name} has {len(schedule.lanes)} lanes for {len(positions)} positions; give one lane "
            "per position."
        )
    latest: _Latest = {}
    for lane, actions in enumerate(schedule.lanes):
        _check_lane(lane, actions, holders, micro_batches, latest)
    _check_complete(latest, holders, micro_batches)
    _check_waits(schedule.lanes, holders)


def _holders(positions: Positions) -> dict[int, int]:
    holders: dict[int, int] = {}
    for position, stages in enumerate(positions):
        if not stages:
            raise PlaitError(f"position {position} holds no stage; leave it out or give it one.")
        for stage in stages:
            if stage in holders:
                raise PlaitError(
                    f"stage {stage} is at positions {holders[stage]} and {position}; a stage is at one position."
                )
            holders[stage] = position
    missing = set(range(len(holders))) - set(holders)
    if missing:
        raise PlaitError(
            f"stage {min(missing)} is at no position, but stage {max(holders)} is; stages are numbered 0, 1, 2, ... "
            "without gaps."
        )
    return holders


def _wrong(lane: int, index: int, action: Action, rule: str) -> PlaitError:
    return PlaitError(f"lane {lane}, action {index} ({action}): {rule}.")


def _check_lane(
    lane: int, actions: Sequence[Action], holders: dict[int, int], micro_batches: int, latest: _Latest
) -> None:
    due = dict.fromkeys(holders, 0)  # each stage's next forward
    for index, action in enumerate(actions):
        stage, kind, micro_batch = action
        if holders.get(stage) != lane:
            where = f"stage {stage} is at position {holders[stage]}" if stage in holders else f"no stage {stage} exists"
            raise _wrong(lane, index, action, f"{where}; an action is in the lane of its stage")
        if not 0 <= micro_batch < micro_batches:
            raise _wrong(lane, index, action, f"there are {micro_batches} micro-batches, numbered from 0")
        before = latest.get((stage, micro_batch))
        if kind == "F":
            if before is not None:
                raise _wrong(lane, index, action, "this forward has run before; each runs once")
            if micro_batch != due[stage]:
                rule = "forwards of a stage come in the order of the micro-batches"
                raise _wrong(lane, index, action, f"{rule}, so {stage}F{due[stage]} is due")
            due[stage] += 1
        elif before != _BEFORE[kind]:
            raise _wrong(lane, index, action, _out_of_order(action, before))
        latest[stage, micro_batch] = kind


def _out_of_order(action: Action, before: str | None) -> str:
    stage, kind, micro_batch = action
    if before in ("B", "W") or before == kind:
        return "this backward has run before; each runs once, as B or as I and then W"
    if before == "I":
        return f"{stage}I{micro_batch} has run before, so what is left of this backward is {stage}W{micro_batch}"
    return f"{stage}{_BEFORE[kind]}{micro_batch} must come before it"


def _check_complete(latest: _Latest, holders: dict[int, int], micro_batches: int) -> None:
    for stage, lane in sorted(holders.items()):
        for micro_batch in range(micro_batches):
            last = latest.get((stage, micro_batch))
            if last not in ("B", "W"):
                missing = {None: "F", "F": "B", "I": "W"}[last]
                raise PlaitError(
                    f"lane {lane} lacks {stage}{missing}{micro_batch}: every one of the {micro_batches} micro-batches "
                    "goes forward and back through every stage. Add the action."
                )


def _check_waits(lanes: Lanes, holders: dict[int, int]) -> None:
    reached = [len(starts) for starts in play(lanes).starts]
    stuck = [lane for lane, actions in enumerate(lanes) if reached[lane] < len(actions)]
    if not stuck:
        return
    circle: list[int] = []
    lane = stuck[0]
    while lane not in circle:  # whoever is stuck waits for a lane that is stuck
        circle.append(lane)
        need = needed(lanes[lane][reached[lane]], len(holders) - 1)
        assert need is not None
        lane = holders[need.stage]
    circle = circle[circle.index(lane) :]
    waits = [_wait(lanes, holders, waiting, reached) for waiting in circle]
    raise PlaitError(
        f"lane {lane}, action {reached[lane]} ({lanes[lane][reached[lane]]}): lanes wait for one another in a circle, "
        f"so none goes on: {'; '.join(waits)}. Move one of these actions forward in its lane."
    )


def _wait(lanes: Lanes, holders: dict[int, int], lane: int, reached: Sequence[int]) -> str:
    action = lanes[lane][reached[lane]]
    need = needed(action, len(holders) - 1)
    assert need is not None
    kinds = ("B", "I") if need.gradient else ("F",)
    other = holders[need.stage]
    awaited = next(a for a in lanes[other] if a[::2] == (need.stage, need.micro_batch) and a.kind in kinds)
    return (
        f"{action} of lane {lane} waits for {awaited}, which comes after {lanes[other][reached[other]]} in lane {other}"
    )
