"""Widest paths in an undirected graph, the quickest of them first.

The path sought from x to y has, in this order: the largest bottleneck bandwidth, the least latency, the
fewest links. That order has no optimal substructure (a prefix may be needlessly wide and so needlessly
slow), so it takes two steps:

1. the largest bottleneck W(x, y) is the narrowest link on the x-y path of a maximum spanning forest;
2. among links of bandwidth >= W, the shortest path by (latency, links) from Dijkstra's algorithm.

Both keep their answers per source. With V vertices and E links: O(E log E) to build, O(V) per source for
step 1, O(E log V) per source and distinct bandwidth for step 2.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Edge:
    """Link `index` of the cluster between vertices `a` and `b`; it is channel 2 * index from a to b."""

    index: int
    a: int
    b: int
    bandwidth: float
    latency: float


class _Hop(NamedTuple):
    """A link as seen from one of its ends. A tuple, because the inner loop unpacks it."""

    channel: int
    to: int
    bandwidth: float
    # Whole femtoseconds: sums are exact, so equal paths tie instead of differing by rounding.
    femtoseconds: int


class _Arrival(NamedTuple):
    """How the best path enters a vertex."""

    previous: int
    channel: int


class WidestPaths:
    """Answers `width` and `path` for the vertices 0 … num_vertices - 1."""

    def __init__(self, num_vertices: int, edges: Iterable[Edge]) -> None:
        self._num_vertices = num_vertices
        edges = list(edges)
        self._hops = _adjacency(num_vertices, edges)
        self._forest = _adjacency(num_vertices, _maximum_spanning_forest(num_vertices, edges))
        self._widths: dict[int, list[float]] = {}
        self._arrivals: dict[tuple[int, float], list[_Arrival | None]] = {}

    def width(self, x: int, y: int) -> float:
        """Largest bottleneck bandwidth from `x` to `y`: 0 when there is no path, infinite when x is y."""
        widths = self._widths.get(x)
        if widths is None:
            widths = self._widths[x] = self._widths_from(x)
        return widths[y]

    def path(self, x: int, y: int, *, at_least: float) -> tuple[int, ...]:
        """Channels of the quickest path over links of bandwidth `at_least`, which width(x, y) must reach."""
        arrivals = self._arrivals.get((x, at_least))
        if arrivals is None:
            arrivals = self._arrivals[x, at_least] = self._arrivals_from(x, at_least)
        channels: list[int] = []
        while y != x:
            arrival = arrivals[y]
            assert arrival is not None, "ask for no more than width(x, y)"
            channels.append(arrival.channel)
            y = arrival.previous
        return tuple(reversed(channels))

    def _widths_from(self, source: int) -> list[float]:
        widths = [0.0] * self._num_vertices
        widths[source] = math.inf
        stack = [source]
        while stack:
            vertex = stack.pop()
            for hop in self._forest[vertex]:
                if widths[hop.to] == 0:
                    widths[hop.to] = min(widths[vertex], hop.bandwidth)
                    stack.append(hop.to)
        return widths

    def _arrivals_from(self, source: int, at_least: float) -> list[_Arrival | None]:
        best: list[tuple[int, int] | None] = [None] * self._num_vertices
        arrivals: list[_Arrival | None] = [None] * self._num_vertices
        best[source] = (0, 0)
        queue = [(0, 0, source)]
        while queue:
            elapsed, num_links, vertex = heapq.heappop(queue)
            if (elapsed, num_links) != best[vertex]:
                continue
            for channel, to, bandwidth, delay in self._hops[vertex]:
                if bandwidth < at_least:
                    continue
                reached = (elapsed + delay, num_links + 1)
                known = best[to]
                # Only strictly better: on a tie the vertex and the link written first stay.
                if known is None or reached < known:
                    best[to] = reached
                    arrivals[to] = _Arrival(vertex, channel)
                    heapq.heappush(queue, (*reached, to))
        return arrivals


def femtoseconds(latency: float) -> int:
    return round(latency * 1e15)


def _adjacency(num_vertices: int, edges: Iterable[Edge]) -> list[list[_Hop]]:
    hops: list[list[_Hop]] = [[] for _ in range(num_vertices)]
    for edge in edges:
        delay = femtoseconds(edge.latency)
        hops[edge.a].append(_Hop(2 * edge.index, edge.b, edge.bandwidth, delay))
        hops[edge.b].append(_Hop(2 * edge.index + 1, edge.a, edge.bandwidth, delay))
    return hops


def _maximum_spanning_forest(num_vertices: int, edges: Iterable[Edge]) -> list[Edge]:
    """Kruskal's algorithm, widest links first."""
    parents = list(range(num_vertices))

    def root(vertex: int) -> int:
        while parents[vertex] != vertex:
            parents[vertex] = parents[parents[vertex]]
            vertex = parents[vertex]
        return vertex

    forest: list[Edge] = []
    for edge in sorted(edges, key=lambda edge: (-edge.bandwidth, edge.index)):
        root_a, root_b = root(edge.a), root(edge.b)
        if root_a != root_b:
            parents[root_a] = root_b
            forest.append(edge)
    return forest
