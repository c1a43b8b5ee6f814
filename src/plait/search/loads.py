"""What any range of atoms weighs, as differences of prefix sums: the numbers a partition is chosen from.

`edges` are the places a stage may begin or end, as atom numbers. A fine chain has one after every atom. A coarse one
has few, each where little crosses: the dynamic program is quadratic in them, and local search moves boundaries to
any atom afterwards.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.cost import Costs
from plait.graph import Graph

Array = NDArray[np.float64]


@dataclass(frozen=True)
class KindLoads:
    """Seconds and saved bytes up to each edge on one kind of device: fixed and per row (`AtomCost` says of what)."""

    forward_fixed: Array
    forward_per_row: Array
    backward_fixed: Array
    backward_per_row: Array
    saved_fixed: Array
    saved_per_row: Array
    weight_fixed: Array
    weight_per_row: Array


@dataclass(frozen=True)
class Loads:
    """Everything up to each edge, and what crosses it."""

    edges: NDArray[np.int64]
    kinds: dict[str, KindLoads]
    trained_bytes: Array  # of parameters, each counted where it is first used
    held_bytes: Array  # of all parameters and buffers
    num_tensors: Array  # trained parameters
    unsplittable: Array  # nodes whose rows may not be split over devices
    forward_per_row: Array  # bytes over the edge, of values with rows
    forward_fixed: Array
    backward_per_row: Array
    backward_fixed: Array

    @property
    def num_edges(self) -> int:
        return len(self.edges)


def fine_loads(graph: Graph, costs: Costs) -> Loads:
    """An edge at every atom."""
    num_atoms = len(graph.atoms)
    trained, held, tensors = (np.zeros(num_atoms) for _ in range(3))
    for parameter in graph.parameters:
        held[parameter.atoms[0]] += parameter.num_bytes
        if parameter.trainable:
            trained[parameter.atoms[0]] += parameter.num_bytes
            tensors[parameter.atoms[0]] += 1
    mixers = np.zeros(num_atoms)
    for mixer in graph.row_mixers:
        mixers[mixer.atom] += not mixer.remedy
    crossing = _crossing(graph)
    return Loads(
        edges=np.arange(num_atoms + 1),
        kinds={kind: _kind_loads(costs, kind) for kind in costs.atoms},
        trained_bytes=_up_to(trained),
        held_bytes=_up_to(held),
        num_tensors=_up_to(tensors),
        unsplittable=_up_to(mixers),
        forward_per_row=crossing[0],
        forward_fixed=crossing[1],
        backward_per_row=crossing[2],
        backward_fixed=crossing[3],
    )


def coarse_loads(fine: Loads, num_edges: int, forced: Collection[int] = (), barred: Collection[int] = ()) -> Loads:
    """At most about `num_edges` edges, each the one with the fewest bytes across among its neighbours."""
    last = len(fine.edges) - 1
    allowed = sorted(set(range(1, last)) - set(barred))
    if len(allowed) + 2 <= num_edges:
        return _at(fine, [0, *allowed, last])
    work = np.sum([kind.forward_per_row + kind.backward_per_row for kind in fine.kinds.values()], axis=0)
    share = work / work[-1] if work[-1] > 0 else fine.edges / last
    slots: dict[int, int] = {}
    for edge in allowed:
        slot = int(share[edge] * (num_edges - 2))
        best = slots.setdefault(slot, edge)
        if fine.forward_per_row[edge] < fine.forward_per_row[best]:
            slots[slot] = edge
    return _at(fine, sorted({0, last, *slots.values(), *forced}))


def _at(fine: Loads, places: Sequence[int]) -> Loads:
    at = np.asarray(places)
    kinds = {name: KindLoads(*(field[at] for field in vars(kind).values())) for name, kind in fine.kinds.items()}
    rest = {name: value[at] for name, value in vars(fine).items() if name not in ("kinds", "edges")}
    return Loads(edges=fine.edges[at], kinds=kinds, **rest)


def _kind_loads(costs: Costs, kind: str) -> KindLoads:
    atoms = costs.atoms[kind]

    def column(name: str) -> Array:
        return _up_to(np.array([getattr(atom, name) for atom in atoms]))

    return KindLoads(*(column(name) for name in KindLoads.__dataclass_fields__))


def _up_to(each: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(each)])


def _crossing(graph: Graph) -> tuple[Array, Array, Array, Array]:
    """Bytes over the cut before each atom: forward with and without rows, and the same of gradients."""
    changes = np.zeros((4, len(graph.atoms) + 2))
    for value in graph.values:
        kind = 0 if value.batch_dim is not None else 1
        for row in [kind, kind + 2] if value.requires_grad else [kind]:
            changes[row, value.producer + 1] += value.row_bytes
            changes[row, value.consumers[-1] + 1] -= value.row_bytes
    forward, fixed, backward, backward_fixed = np.cumsum(changes, axis=1)[:, : len(graph.atoms) + 1]
    return forward, fixed, backward, backward_fixed
