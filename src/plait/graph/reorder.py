"""A graph with its atoms in another order: the chain that is cut, from the order in which the model's code ran."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from plait.graph.graph import Graph
from plait.graph.order import Flow, bytes_alive, cheapest_order


def cheapest_chain(graph: Graph) -> list[int]:
    """The atoms in an order with few bytes alive between them; the last one, which has the loss, stays last.

    What is made from parameters alone comes just before its first use: earlier, it would only lie about, and a stage
    would compute from a parameter for another.
    """
    every, beside = flows(graph), _made_from_parameters(graph)
    kept = [atom for atom in range(len(graph.atoms)) if atom not in beside]
    place = {atom: index for index, atom in enumerate(kept)}
    among = [Flow(place[f.producer], _among(f.consumers, place), f.num_bytes) for f in every if f.producer in place]
    order = [kept[index] for index in cheapest_order(len(kept), among)]
    chain = _with_makers_before_use(order, every, beside)
    as_given = list(range(len(graph.atoms)))
    return chain if sum(bytes_alive(chain, every)) < sum(bytes_alive(as_given, every)) else as_given


def _made_from_parameters(graph: Graph) -> set[int]:
    """Atoms that no row of the batch reaches: all they make is the same for any batch."""
    reached = {v.producer for v in graph.values if v.batch_dim is not None} | {len(graph.atoms) - 1}
    silent = set(range(len(graph.atoms))) - {v.producer for v in graph.values}
    for value in sorted(graph.values, key=lambda value: value.producer):
        if value.producer in reached:
            reached.update(value.consumers)
    return set(range(len(graph.atoms))) - reached - silent


def _among(atoms: Iterable[int], place: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(place[atom] for atom in atoms if atom in place)


def _with_makers_before_use(order: Sequence[int], every: Sequence[Flow], beside: Set[int]) -> list[int]:
    makers: dict[int, list[int]] = {}
    for flow in every:
        for consumer in flow.consumers if flow.producer in beside else ():
            makers.setdefault(consumer, []).append(flow.producer)
    chain: dict[int, None] = {}

    def add(atom: int) -> None:
        for maker in sorted(makers.get(atom, ())):
            if maker not in chain:
                add(maker)
        chain[atom] = None

    for atom in order:
        add(atom)
    return list(chain)


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
