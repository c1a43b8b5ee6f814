"""Contiguous stages with the least bottleneck, for given devices per stage.

    W(k, l) = min over l' < l of max( W(k-1, l'), channel(l', k), compute(l', l, k) )

W(k, l) is the least bottleneck when the first l atoms form k stages. compute is forward plus backward of one
micro-batch on the slowest replica of stage k; channel is what crosses the cut before l', both ways, over the
slowest link between the two stages. Many partitions are nearly as good, so a second pass of the same shape takes,
among those within `SLACK` of the best bottleneck, the one with the fewest bytes across its cuts:

    V(k, l) = min over l' < l with max( channel(l', k), compute(l', l, k) ) <= (1 + SLACK) W of V(k-1, l') + bytes(l')

Where the user pinned cuts (`limits`), both passes only walk over stage starts that the pins allow, and no stage
reaches across a cut that they force. O(S L^2), each row of the table at once.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from plait.cluster import Cluster
from plait.cost import Costs
from plait.errors import PlaitError
from plait.graph import Graph
from plait.search.limits import Limits

Array = NDArray[np.float64]
SLACK = 0.03  # of the bottleneck, given away for cuts that send less


def balanced_boundaries(
    graph: Graph,
    costs: Costs,
    cluster: Cluster,
    devices: Sequence[Sequence[int]],
    micro_rows: int,
    limits: Limits | None = None,
) -> list[int]:
    """First atom of every stage after the first, for stages on `devices`.

    `limits` must admit that many stages (`Limits.stage_counts`).
    """
    num_atoms, num_stages = len(graph.atoms), len(devices)
    if num_stages > num_atoms:
        raise PlaitError(
            f"{num_stages} stages were asked for, but {graph.name} has {num_atoms} atoms (parts that can be told "
            f"apart): use at most {num_atoms} stages."
        )
    limits = limits or Limits(num_atoms)
    if num_stages not in limits.stage_counts:
        raise PlaitError(f"the pins leave no partition of {graph.name} into {num_stages} stages: drop one of them.")
    starts = [np.where(limits.starts(k), 0.0, np.inf) for k in range(num_stages)]
    crossing = crossing_bytes(graph, micro_rows)
    compute = [_stage_seconds(costs, cluster, group, num_atoms, micro_rows) for group in devices]
    channel = [np.zeros(num_atoms + 1)]
    channel += [2 * crossing / _slowest_link(cluster, a, b) for a, b in pairwise(devices)]
    best = np.full(num_atoms + 1, np.inf)
    best[0] = 0.0
    for k in range(num_stages):
        best, _ = _extend(np.maximum(best, channel[k]) + starts[k], compute[k], np.maximum, limits)
    limit = best[num_atoms] * (1 + SLACK)

    def within(cost: Array, load: Array) -> Array:
        return np.where(load <= limit, cost, np.inf)

    fewest = np.full(num_atoms + 1, np.inf)
    fewest[0] = 0.0
    choices = []
    for k in range(num_stages):
        before = np.where(channel[k] <= limit, fewest + (crossing if k else 0.0), np.inf)
        fewest, choice = _extend(before + starts[k], compute[k], within, limits)
        choices.append(choice)
    boundaries: list[int] = []
    end = num_atoms
    for choice in reversed(choices[1:]):
        end = int(choice[end])
        boundaries.append(end)
    return boundaries[::-1]


def _extend(
    before: Array, compute: Array, combine: Callable[[Array, Array], Array], limits: Limits
) -> tuple[Array, NDArray[np.int64]]:
    """One more stage: for every end, the best start and what it costs."""
    size = len(before)
    best, choice = np.full(size, np.inf), np.zeros(size, dtype=np.int64)
    for end in range(1, size):
        first = limits.earliest[end]
        costs = combine(before[first:end], compute[end] - compute[first:end])
        cheapest = int(np.argmin(costs))
        choice[end], best[end] = first + cheapest, costs[cheapest]
    return best, choice


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
