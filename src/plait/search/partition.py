"""Contiguous stages with the least bottleneck, for given devices per stage.

    W(k, l) = min over l' < l of max( W(k-1, l'), channel(l', k), compute(l', l, k) )

W(k, l) is the least bottleneck when the first l atoms form k stages. compute is forward plus backward of one
micro-batch on the slowest replica of stage k; channel is what crosses the cut before l', both ways, over the
slowest link between the two stages. O(S L^2), each row of the table at once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plait.cluster import Cluster
from plait.cost import Costs
from plait.errors import PlaitError
from plait.graph import Graph

Array = NDArray[np.float64]


def balanced_boundaries(
    graph: Graph, costs: Costs, cluster: Cluster, devices: Sequence[Sequence[int]], micro_rows: int
) -> list[int]:
    """First atom of every stage after the first, for stages on `devices`."""
    num_atoms, num_stages = len(graph.atoms), len(devices)
    if num_stages > num_atoms:
        raise PlaitError(
            f"{num_stages} stages were asked for, but {graph.name} has {num_atoms} atoms (parts that can be told "
            f"apart): use at most {num_atoms} stages."
        )
    crossing = crossing_bytes(graph, micro_rows)
    best = np.full((num_stages + 1, num_atoms + 1), np.inf)
    choice = np.zeros((num_stages + 1, num_atoms + 1), dtype=np.int64)
    best[0, 0] = 0.0
    for k in range(1, num_stages + 1):
        compute = _stage_seconds(costs, cluster, devices[k - 1], num_atoms, micro_rows)
        channel = np.zeros(num_atoms + 1)
        if k > 1:
            channel = 2 * crossing / _slowest_link(cluster, devices[k - 2], devices[k - 1])
        before = np.maximum(best[k - 1], channel)
        for end in range(k, num_atoms + 1):
            starts = np.maximum(before[:end], compute[end] - compute[:end])
            choice[k, end] = int(np.argmin(starts))
            best[k, end] = starts[choice[k, end]]
    boundaries: list[int] = []
    end = num_atoms
    for k in range(num_stages, 1, -1):
        end = int(choice[k, end])
        boundaries.append(end)
    return boundaries[::-1]


def crossing_bytes(graph: Graph, rows: int) -> Array:
    """Bytes alive across the cut before each atom."""
    change = np.zeros(len(graph.atoms) + 2)
    for value in graph.values:
        size = value.num_bytes(rows)
        change[value.producer + 1] += size
        change[value.consumers[-1] + 1] -= size
    return np.cumsum(change)[: len(graph.atoms) + 1]


def _stage_seconds(costs: Costs, cluster: Cluster, devices: Sequence[int], num_atoms: int, micro_rows: int) -> Array:
    """Prefix sums of one micro-batch's compute on the slowest of `devices`, its rows shared evenly."""
    rows = micro_rows / len(devices)
    slowest = np.zeros(num_atoms + 1)
    for kind, speed in {(cluster.devices[d].kind.name, cluster.devices[d].speed) for d in devices}:
        atoms = costs.atoms[kind]
        each = [a.forward_fixed + a.backward_fixed + (a.forward_per_row + a.backward_per_row) * rows for a in atoms]
        slowest = np.maximum(slowest, np.concatenate([[0.0], np.cumsum(each)]) / speed)
    return slowest


def _slowest_link(cluster: Cluster, senders: Sequence[int], receivers: Sequence[int]) -> float:
    return min(cluster.bandwidth(a, b) for a in senders for b in receivers)
