"""Contiguous partitions with the least bottleneck.

    W(s, l) = min over l' < l of max( W(s-1, l'), load_s(l', l) )

W(s, l) is the least bottleneck when the first l blocks form s stages. O(S L^2), a stage at a time.
"""

from collections.abc import Iterable

import numpy as np

from plait.search.baselines.blocks import Array, Numbers


def min_max(loads: Iterable[Array]) -> list[tuple[float, list[int]]]:
    """For 1, 2, … stages: the least bottleneck and the boundaries that give it.

    `loads` has a matrix per stage, [start, end]: what the stage takes with the blocks between two edges, infinite
    where it cannot. A number of stages that no partition has is infinite.

    >>> from plait.search.baselines.blocks import between
    >>> load = between(np.array([0.0, 3.0, 4.0, 6.0]))
    >>> min_max([load, load])
    [(6.0, []), (3.0, [1])]
    """
    best: Array | None = None
    choices: list[Numbers] = []
    found: list[tuple[float, list[int]]] = []
    for load in loads:
        if best is None:
            best, choice = load[0], np.zeros(len(load), dtype=np.int64)
        else:
            bottleneck = np.maximum(best[:, None], load)
            choice = np.argmin(bottleneck, axis=0)
            best = np.take_along_axis(bottleneck, choice[None, :], axis=0)[0]
        choices.append(choice)
        found.append((float(best[-1]), _boundaries(choices)))
    return found


def _boundaries(choices: list[Numbers]) -> list[int]:
    boundaries: list[int] = []
    end = len(choices[0]) - 1
    for choice in reversed(choices[1:]):
        end = int(choice[end])
        boundaries.append(end)
    return boundaries[::-1]
