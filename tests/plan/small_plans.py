"""A small graph and a valid plan for it, which tests change in one place."""

from dataclasses import replace
from typing import Any

from plait.cluster import local_cluster
from plait.graph import Atom, Graph, Parameter, RowMixer, Value
from plait.plan import Plan, even_stages

GRAPH = Graph(
    "toy",
    tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(4)),
    tuple(Value(f"v{n}", n, (n + 1,), (1, 8), "float32", 0, True) for n in range(3)),
    tuple(Parameter(f"p{n}", (8, 8), "float32", (n,), True, False) for n in range(4)),
)
PLAN = Plan(
    model="toy",
    fingerprint=GRAPH.fingerprint,
    cluster=local_cluster(4),
    batch_size=16,
    micro_batches=4,
    schedule="1f1b",
    stages=even_stages([2], 4, [[0, 1], [2, 3]]),
)


def plan(**changes: Any) -> Plan:
    return replace(PLAN, **changes)


def mixing_graph(atom: int, remedy: str, module: str = "head") -> Graph:
    """The same graph with an operation on all rows in `atom`."""
    return replace(GRAPH, row_mixers=(RowMixer(atom, "softmax", module, "it works along the batch dimension", remedy),))
