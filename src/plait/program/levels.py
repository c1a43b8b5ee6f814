"""Levels: an order of all computations in which nothing comes before what it waits for."""

from collections import deque
from collections.abc import Sequence

from plait.program.program import Edge
from plait.schedule import Action, Schedule


def levels(schedule: Schedule, edges: Sequence[Edge]) -> dict[Action, int]:
    """A number per action, above those of all it needs and of those before it at its position.

    Actions that would wait for ever have none. Linear in the actions and in what they need.
    """
    needs = _Needs(schedule, edges)
    found: dict[Action, int] = {}
    done = [0] * len(schedule.lanes)
    waiting: dict[Action, list[int]] = {}
    runnable = deque(range(len(schedule.lanes)))
    while runnable:
        position = runnable.popleft()
        lane = schedule.lanes[position]
        for index in range(done[position], len(lane)):
            needed = needs.of(lane[index])
            missing = next((action for action in needed if action not in found), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(position)
                break
            before = lane[index - 1 : index]  # none before the first
            found[lane[index]] = 1 + max((found[action] for action in (*needed, *before)), default=-1)
            done[position] = index + 1
            runnable += waiting.pop(lane[index], ())
    return found


class _Needs:
    """What each action waits for, on other positions or its own."""

    def __init__(self, schedule: Schedule, edges: Sequence[Edge]) -> None:
        self._producers: dict[int, set[int]] = {}
        self._consumers: dict[int, set[int]] = {}
        for edge in edges:
            for consumer in edge.consumers:
                self._producers.setdefault(consumer, set()).add(edge.producer)
                if edge.value.requires_grad:
                    self._consumers.setdefault(edge.producer, set()).add(consumer)
        self._split = {(a.stage, a.micro_batch) for lane in schedule.lanes for a in lane if a.kind == "I"}

    def of(self, action: Action) -> list[Action]:
        stage, kind, micro_batch = action
        if kind == "F":
            return [Action(producer, "F", micro_batch) for producer in self._producers.get(stage, ())]
        if kind == "W":
            return [self._backward(stage, micro_batch)]
        later = [self._backward(consumer, micro_batch) for consumer in self._consumers.get(stage, ())]
        return [Action(stage, "F", micro_batch), *later]

    def _backward(self, stage: int, micro_batch: int) -> Action:
        """The part of the backward that makes the gradients to send."""
        return Action(stage, "I" if (stage, micro_batch) in self._split else "B", micro_batch)
