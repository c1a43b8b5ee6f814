"""Orders of actions written by chance: all that must hold is that nothing comes before what it needs."""

import random
from collections.abc import Collection, Sequence

from plait.schedule import Action


def random_lanes(
    placement: Sequence[int], micro_batches: int, *, split: Collection[int] = (), seed: int = 0
) -> tuple[str, ...]:
    """Lanes of a random order of everything. `placement` has each stage's position; `split` ones go back in halves."""
    choices = random.Random(seed)
    stages = range(len(placement))
    todo = [Action(s, kind, m) for s in stages for m in range(micro_batches) for kind in _kinds(s in split)]
    done: set[Action] = set()
    lanes: dict[int, list[str]] = {}
    while todo:
        action = choices.choice([a for a in todo if all(n in done for n in _needs(a, len(placement), split))])
        todo.remove(action)
        done.add(action)
        lanes.setdefault(placement[action.stage], []).append(str(action))
    return tuple(",".join(lanes[position]) for position in sorted(lanes))


def _kinds(is_split: bool) -> tuple[str, ...]:
    return ("F", "I", "W") if is_split else ("F", "B")


def _needs(action: Action, num_stages: int, split: Collection[int]) -> list[Action]:
    stage, kind, m = action
    if kind == "F":
        before = [Action(stage - 1, "F", m)] if stage > 0 else []
        return [*before, Action(stage, "F", m - 1)] if m > 0 else before
    if kind == "W":
        return [Action(stage, "I", m)]
    later = [Action(stage + 1, "I" if stage + 1 in split else "B", m)] if stage + 1 < num_stages else []
    return [Action(stage, "F", m), *later]
