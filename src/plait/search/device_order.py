"""Recursive device ordering: well-connected devices become neighbours, slow links become stage boundaries (S3, RDO).

    order(V) = order(X) + order(V \\ X),   X | V \\ X a global minimum cut of the bandwidth graph b(u, v)

The cut is Stoer and Wagner's: repeat |V| - 1 times: grow a set from any vertex by always adding the one most tightly
connected to it; the last one added, alone against the rest, is a candidate; merge it with the one before. O(V^3) with
rows of the matrix at once. Devices that nothing tells apart (same bandwidth to and from everybody) are one vertex, so
a rack of equal hosts is ordered by host, not by device. Which side comes first is free: the one that holds the device
written first in the cluster file, so that equal clusters are ordered alike.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plait.cluster import Cluster

Array = NDArray[np.float64]


def device_order(cluster: Cluster) -> list[int]:
    """All devices of the cluster, neighbours by connection."""
    groups = _alike(cluster)
    bandwidth = np.zeros((len(groups), len(groups)))
    for i, first in enumerate(groups):
        for j, second in enumerate(groups[:i]):
            between = cluster.bandwidth(first[0], second[0]) * len(first) * len(second)
            bandwidth[i, j] = bandwidth[j, i] = between
    return [device for group in _ordered(list(range(len(groups))), bandwidth) for device in groups[group]]


def _alike(cluster: Cluster) -> list[list[int]]:
    """Devices of one host with the same bandwidth to one another and to everybody else, which one of them tells."""
    groups: list[list[int]] = []
    for host in cluster.hosts:
        devices = cluster.devices_of(host.name)
        outside = next((d for d in range(len(cluster.devices)) if cluster.devices[d].host != host.name), None)
        by_reach: dict[tuple[float, ...], list[int]] = {}
        for device in devices:
            inside = sorted(cluster.bandwidth(device, other) for other in devices if other != device)
            reach = cluster.bandwidth(device, outside) if outside is not None else 0.0
            by_reach.setdefault((*inside, reach), []).append(device)
        for members in by_reach.values():
            between = {cluster.bandwidth(a, b) for a in members for b in members if a != b}
            groups += [members] if len(between) <= 1 else [[device] for device in members]
    return groups


def _ordered(vertices: list[int], bandwidth: Array) -> list[int]:
    if len(vertices) <= 2:
        return sorted(vertices)
    inner = bandwidth[np.ix_(vertices, vertices)]
    off_diagonal = inner[~np.eye(len(vertices), dtype=bool)]
    if np.all(off_diagonal == off_diagonal[0]):
        return sorted(vertices)  # nothing to choose from
    side = minimum_cut(inner)
    near = [vertices[i] for i in side]
    far = [vertex for vertex in vertices if vertex not in set(near)]
    if min(far) < min(near):
        near, far = far, near
    return _ordered(near, bandwidth) + _ordered(far, bandwidth)


def minimum_cut(weights: Array) -> Sequence[int]:
    """One side of a global minimum cut of a complete graph with these weights.

    >>> sorted(minimum_cut(np.array([[0, 9, 1, 1], [9, 0, 1, 1], [1, 1, 0, 9], [1, 1, 9, 0]], dtype=float)))
    [2, 3]
    """
    weights = weights.copy()
    members = [[i] for i in range(len(weights))]
    alive = list(range(len(weights)))
    best, side = np.inf, members[-1]
    while len(alive) > 1:
        tight = weights[alive[0]].copy()
        remaining = np.zeros(len(weights), dtype=bool)
        remaining[alive[1:]] = True
        last, before = alive[0], alive[0]
        while remaining.any():
            before = last
            last = int(np.argmax(np.where(remaining, tight, -1.0)))
            remaining[last] = False
            strength = tight[last]
            tight += weights[last]
        if strength < best:
            best, side = strength, list(members[last])
        members[before] += members[last]
        weights[before] += weights[last]
        weights[:, before] += weights[:, last]
        weights[before, before] = 0.0
        alive.remove(last)
    return side
