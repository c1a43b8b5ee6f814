"""A graph with its atoms in another order: the chain that is cut, from the order in which the model's code ran."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from plait.graph.graph import Graph
from plait.graph.order import Flow, cheapest_order


def cheapest_chain(graph: Graph) -> list[int]:
    """The atoms in an order with few bytes alive between them; the last one, which has the loss, stays last."""
    return cheapest_order(len(graph.atoms), flows(graph))


def flows(graph: Graph) -> list[Flow]:
    """What passes between the atoms, for one row; whoever feeds nobody comes before the last atom all the same."""
    last = len(graph.atoms) - 1
    ends = set(range(last)) - {v.producer for v in graph.values}
    return [
        *(Flow(v.producer, v.consumers, v.row_bytes) for v in graph.values),
        *(Flow(end, (last,), 0) for end in sorted(ends)),
    ]


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """The same graph with atom `order[i]` in place i."""
    place = {atom: index for index, atom in enumerate(order)}

    def places(atoms: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(place[atom] for atom in atoms))

    values = [replace(v, producer=place[v.producer], consumers=places(v.consumers)) for v in graph.values]
    return replace(
        graph,
        atoms=tuple(graph.atoms[atom] for atom in order),
        values=tuple(sorted(values, key=lambda value: value.producer)),
        parameters=tuple(replace(p, atoms=places(p.atoms)) for p in graph.parameters),
        row_mixers=tuple(replace(m, atom=place[m.atom]) for m in graph.row_mixers),
    )
