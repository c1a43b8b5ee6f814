"""`python -m plait.schedule [POSITIONS [MICRO_BATCHES]]`: a picture of every schedule."""

import sys

from plait.schedule.picture import picture
from plait.schedule.recipes import RECIPES, make_schedule, positions_for


def pictures(num_positions: int, micro_batches: int) -> str:
    parts = []
    for name, recipe in RECIPES.items():
        positions = positions_for(name, num_positions, 1 if recipe.placement == "line" else 2)
        parts.append(f"{name}\n{picture(make_schedule(name, positions, micro_batches))}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(pictures(*(int(text) for text in [*sys.argv[1:3], "4", "6"][:2])))
