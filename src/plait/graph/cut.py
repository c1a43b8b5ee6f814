"""Cutting the chain of atoms into stages, as data: what each stage holds, receives and sends."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from plait.errors import PlaitError
from plait.graph.graph import Graph, Parameter, RowMixer, Value


@dataclass(frozen=True)
class StageCut:
    """One stage: atoms `start..end-1`.

    `receives` come straight from the stage that makes them, however far back; `sends` are what later
    stages use. A parameter read by several stages appears in each.
    """

    index: int
    start: int
    end: int
    receives: tuple[Value, ...]
    sends: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    row_mixers: tuple[RowMixer, ...]
    has_loss: bool


def cut(graph: Graph, boundaries: Sequence[int]) -> tuple[StageCut, ...]:
    """Stages between 0, the given boundaries and the last atom.

    Raises PlaitError where the boundaries do not rise strictly inside the chain.
    """
    edges = [0, *boundaries, len(graph.atoms)]
    if any(a >= b for a, b in pairwise(edges)):
        raise PlaitError(
            f"stage boundaries {list(boundaries)} must rise strictly between 0 and {len(graph.atoms)}, the number "
            f"of atoms of {graph.name}: every stage needs at least one atom. Use at most {len(graph.atoms)} stages."
        )
    return tuple(
        StageCut(
            index=index,
            start=start,
            end=end,
            receives=tuple(
                v for v in graph.values if v.producer < start and any(start <= c < end for c in v.consumers)
            ),
            sends=tuple(v for v in graph.values if start <= v.producer < end and v.consumers[-1] >= end),
            parameters=tuple(p for p in graph.parameters if any(start <= a < end for a in p.atoms)),
            row_mixers=tuple(m for m in graph.row_mixers if start <= m.atom < end),
            has_loss=end == len(graph.atoms),
        )
        for index, (start, end) in enumerate(pairwise(edges))
    )


def stage_of_atom(stages: Sequence[StageCut], atom: int) -> int:
    return next(stage.index for stage in stages if stage.start <= atom < stage.end)
