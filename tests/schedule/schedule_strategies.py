"""What the tests of schedules share: pipelines of every size a schedule takes, and what a lane holds."""

from collections.abc import Sequence

from hypothesis import strategies as st

from plait.schedule import RECIPES, Action, positions_for


@st.composite
def pipelines(draw, names=tuple(RECIPES)):
    """(name, positions, micro-batches)"""
    name = draw(st.sampled_from(sorted(names)))
    stages = {"line": st.just(1), "loop": st.integers(1, 4), "vee": st.just(2)}[RECIPES[name].placement]
    return name, positions_for(name, draw(st.integers(1, 8)), draw(stages)), draw(st.integers(1, 26))


def line(stages: int) -> list[list[int]]:
    """One stage at each position."""
    return [[stage] for stage in range(stages)]


def most_held(lane: Sequence[Action]) -> int:
    held = most = 0
    for action in lane:
        held += (action.kind == "F") - (action.kind in ("B", "W"))
        most = max(most, held)
    return most


def idle_units(lane: Sequence[Action], starts: Sequence[float]) -> float:
    """Between the lane's first action and its last, where each takes one unit."""
    return starts[-1] + 1 - starts[0] - len(lane)
