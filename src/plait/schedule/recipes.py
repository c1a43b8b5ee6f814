"""Every schedule by name: how it is made, and what a planner must know of it."""

from collections.abc import Callable
from dataclasses import dataclass

from plait.errors import PlaitError
from plait.schedule import pe as pe_order
from plait.schedule.gpipe import gpipe
from plait.schedule.interleaved import interleaved, warm_up_forwards
from plait.schedule.one_f_one_b import one_f_one_b
from plait.schedule.placement import Placement, check_number, place
from plait.schedule.schedule import Positions, Schedule
from plait.schedule.zb_v import zb_v
from plait.schedule.zero_bubble import zb_h1, zb_h2

Make = Callable[[Positions, int], Schedule]


@dataclass(frozen=True)
class Recipe:
    """`holds(p, P, v, M)` bounds what position p of P, with v stages, has in flight of M micro-batches a stage.

    What counts is a micro-batch of one stage, from its forward to the end of its backward (`W` where that is split).
    """

    make: Make
    placement: Placement
    splits_backward: bool
    holds: Callable[[int, int, int, int], int]

    def in_flight(self, positions: Positions, micro_batches: int) -> tuple[int, ...]:
        """At most so many micro-batches are in flight at each position. They do as limits of `sweep`."""
        return tuple(
            min(self.holds(position, len(positions), len(stages), micro_batches), len(stages) * micro_batches)
            for position, stages in enumerate(positions)
        )


RECIPES: dict[str, Recipe] = {
    "gpipe": Recipe(gpipe, "line", False, lambda p, size, v, m: m),
    "1f1b": Recipe(one_f_one_b, "line", False, lambda p, size, v, m: size - p),
    "interleaved": Recipe(interleaved, "loop", False, lambda *at: warm_up_forwards(*at) + 1),
    "zb-h1": Recipe(zb_h1, "line", True, lambda p, size, v, m: size),
    "zb-h2": Recipe(zb_h2, "line", True, lambda p, size, v, m: 2 * size - 1),
    "zb-v": Recipe(zb_v, "vee", True, lambda p, size, v, m: 2 * size),
    "pe": Recipe(pe_order.pe, "line", False, lambda p, size, v, m: pe_order.most_needed(p, size)),
}
SCHEDULES: dict[str, Make] = {name: recipe.make for name, recipe in RECIPES.items()}


def make_schedule(name: str, positions: Positions, micro_batches: int) -> Schedule:
    """The order of actions at every position of a pipeline. Raises PlaitError where `name` does not fit them."""
    return find_recipe(name).make(positions, micro_batches)


def positions_for(name: str, num_positions: int, stages_per_position: int = 1) -> tuple[tuple[int, ...], ...]:
    """The stages that the schedule wants at each position. Raises PlaitError where it cannot have so many.

    >>> positions_for("interleaved", 2, 3)
    ((0, 2, 4), (1, 3, 5))
    """
    recipe = find_recipe(name)
    check_number(name, recipe.placement, stages_per_position)
    return place(recipe.placement, num_positions, stages_per_position)


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise PlaitError(f"unknown schedule {name!r}; choose one of {', '.join(RECIPES)}.")
    return RECIPES[name]
