"""A schedule run by the clock: every lane does its actions in order, each as soon as what it needs is there."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from plait.schedule.schedule import Action
from plait.schedule.sweep import Seconds, TransferSeconds, no_time, unit_time

Lanes = Sequence[Sequence[Action]]


class Played(NamedTuple):
    """When each action starts. A lane that waits for ever has fewer starts than actions."""

    starts: tuple[tuple[float, ...], ...]
    seconds: float


class Needed(NamedTuple):
    """What one stage hands another: the activation of a micro-batch, or its gradient (of a `B` or an `I`)."""

    stage: int
    gradient: bool
    micro_batch: int


def needed(action: Action, last_stage: int) -> Needed | None:
    """What an action waits for from another stage."""
    stage, kind, micro_batch = action
    if kind == "F":
        return Needed(stage - 1, False, micro_batch) if stage > 0 else None
    if kind == "W" or stage == last_stage:
        return None
    return Needed(stage + 1, True, micro_batch)


def made(action: Action) -> Needed | None:
    return None if action.kind == "W" else Needed(action.stage, action.kind != "F", action.micro_batch)


def play(lanes: Lanes, *, seconds: Seconds = unit_time, transfer_seconds: TransferSeconds = no_time) -> Played:
    """Start of every action that can run. A transfer between lanes takes its time but is in nobody's way. Linear."""
    last_stage = max((action.stage for lane in lanes for action in lane), default=0)
    starts: list[list[float]] = [[] for _ in lanes]
    free = [0.0] * len(lanes)
    ready: dict[Needed, tuple[float, int]] = {}  # since when, and in which lane
    waiting: dict[Needed, int] = {}
    runnable = deque(range(len(lanes)))
    while runnable:
        lane = runnable.popleft()
        for index in range(len(starts[lane]), len(lanes[lane])):
            action, start = lanes[lane][index], free[lane]
            need = needed(action, last_stage)
            if need is not None:
                if need not in ready:
                    waiting[need] = lane
                    break
                end, source = ready[need]
                if source != lane:
                    end += transfer_seconds(min(need.stage, action.stage), need.gradient)
                start = max(start, end)
            starts[lane].append(start)
            free[lane] = start + seconds(action.stage, action.kind)
            result = made(action)
            if result is not None:
                ready[result] = (free[lane], lane)
                if result in waiting:
                    runnable.append(waiting.pop(result))
    return Played(tuple(map(tuple, starts)), max(free, default=0.0))
