"""What any range of atoms weighs, as differences of prefix sums: the numbers a partition is chosen from.

`edges` are the places a stage may begin or end, as atom numbers. A fine chain has one after every atom. A coarse one
has few, each where little crosses: the dynamic program is quadratic in them, and local search moves boundaries to
any atom afterwards.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from plait.cost import ROUNDS, Costs, GroupLinks
from plait.graph import Graph, Parameter
from plait.graph.sharding import Sharding, split_sizes

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
class Exchanges:
    """What the devices of a tensor group exchange up to each edge: messages and bytes of each of them."""

    forward_messages: Array
    forward_fixed: Array
    forward_per_row: Array
    backward_messages: Array
    backward_fixed: Array
    backward_per_row: Array

    def forward(self, links: GroupLinks, rows: float) -> Array:
        """Seconds of one micro-batch."""
        moved = self.forward_fixed + self.forward_per_row * rows
        seconds: Array = links.latency * self.forward_messages + links.seconds_per_byte * moved
        return seconds

    def backward(self, links: GroupLinks, rows: float) -> Array:
        moved = self.backward_fixed + self.backward_per_row * rows
        seconds: Array = links.latency * self.backward_messages + links.seconds_per_byte * moved
        return seconds


@dataclass(frozen=True)
class Loads:
    """Everything up to each edge, and what crosses it. `tensor` has the same of a device of a tensor group, by size."""

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
    exchanges: Exchanges | None = None
    tensor: "Mapping[int, Loads]" = field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        return len(self.edges)

    def on(self, degree: int) -> "Loads":
        return self if degree == 1 else self.tensor[degree]


def fine_loads(graph: Graph, costs: Costs) -> Loads:
    """An edge at every atom."""
    alone = _loads(graph, costs, None)
    return replace(alone, tensor={one.degree: _loads(graph, costs, one) for one in whole_chain(graph, costs)})


def whole_chain(graph: Graph, costs: Costs) -> list[Sharding]:
    """The ways in which devices may share all atoms, one for each number of devices."""
    found = [one for one in costs.shardings if (one.start, one.end) == (0, len(graph.atoms))]
    return list({one.degree: one for one in reversed(found)}.values())


def part_bytes(parameter: Parameter, sharding: Sharding | None) -> int:
    """Of a parameter, on the device of a tensor group that has most of it."""
    dimension = sharding.split.get(parameter.name) if sharding is not None else None
    if sharding is None or dimension is None:
        return parameter.num_bytes
    size = parameter.shape[dimension]
    return parameter.num_bytes // size * split_sizes(size, sharding.degree)[0]


def _loads(graph: Graph, costs: Costs, sharding: Sharding | None) -> Loads:
    num_atoms = len(graph.atoms)
    trained, held, tensors = (np.zeros(num_atoms) for _ in range(3))
    for parameter in graph.parameters:
        size = part_bytes(parameter, sharding)
        held[parameter.atoms[0]] += size
        if parameter.trainable:
            trained[parameter.atoms[0]] += size
            tensors[parameter.atoms[0]] += 1
    mixers = np.zeros(num_atoms)
    for mixer in graph.row_mixers:
        mixers[mixer.atom] += not mixer.remedy
    crossing = _crossing(graph)
    if sharding is not None:
        costs = costs.on_group(0, num_atoms, sharding.degree, sharding.split)
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
        exchanges=None if sharding is None else _exchanges(sharding),
    )


def _exchanges(sharding: Sharding) -> Exchanges:
    columns = np.zeros((6, sharding.end))
    for found in sharding.collectives:
        messages = ROUNDS[found.kind] * (sharding.degree - 1)
        part = messages / sharding.degree
        first = 0 if found.phase == "forward" else 3
        columns[first : first + 3, found.atom] += messages, part * found.fixed_bytes, part * found.bytes_per_row
    return Exchanges(*map(_up_to, columns))


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
    columns = {name: value[at] for name, value in vars(fine).items() if isinstance(value, np.ndarray)}
    exchanges = fine.exchanges and Exchanges(*(field[at] for field in vars(fine.exchanges).values()))
    tensor = {degree: _at(loads, places) for degree, loads in fine.tensor.items()}
    return Loads(**columns, kinds=kinds, exchanges=exchanges, tensor=tensor)


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
