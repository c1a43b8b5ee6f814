"""Random cases small enough for the exact solver: chains with a skip now and then, on devices joined anyhow."""

import random
from dataclasses import dataclass

from plait.cluster import Cluster, Device, DeviceKind, Host, Link
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, Value

KIND = DeviceKind("unit", 1e12, 1e12, 2**40, 1.0, "cpu")
FLOAT = 4


@dataclass(frozen=True)
class SmallCase:
    graph: Graph
    costs: Costs
    cluster: Cluster
    batch_size: int
    micro_batches: int


def small_case(seed: int) -> SmallCase:
    """4 to 6 atoms, 2 to 4 devices, 2 to 4 micro-batches; an atom takes about a second a micro-batch."""
    draw = random.Random(seed)
    graph = _graph(draw, draw.randint(4, 6))
    micro_batches = draw.randint(2, 4)
    rows = draw.choice((4, 6, 8))
    return SmallCase(
        graph, _costs(draw, graph, rows), _cluster(draw, draw.randint(2, 4)), rows * micro_batches, micro_batches
    )


def _graph(draw: random.Random, count: int) -> Graph:
    """Boundaries of 1 to 100 floats a row, 1 to 1,000 floats of parameters an atom, both evenly over the decades."""
    values = []
    for producer in range(count - 1):
        consumers = {producer + 1}
        if draw.random() < 0.2 and producer + 2 < count:
            consumers.add(draw.randrange(producer + 2, count))
        shape = (1, round(10 ** draw.uniform(0, 2)))
        values.append(Value(f"v{producer}", producer, tuple(sorted(consumers)), shape, "float32", 0, True))
    parameters = tuple(
        Parameter(f"p{atom}", (round(10 ** draw.uniform(0, 3)),), "float32", (atom,), True, False)
        for atom in range(count)
    )
    return Graph("small", tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(count)), tuple(values), parameters)


def _costs(draw: random.Random, graph: Graph, rows: int) -> Costs:
    atoms = []
    for _ in graph.atoms:
        forward = 10 ** draw.uniform(-0.6, 0.3) / rows
        backward = forward * draw.uniform(1.0, 3.0)
        fixed = draw.choice((0.0, 0.02))
        atoms.append(AtomCost(fixed, forward, 2 * fixed, backward, 0.0, 8.0))
    optimizer = OptimizerCost(2.0, draw.choice((0.0, 1e-4)), 0.0)
    return Costs(graph.fingerprint, {"unit": tuple(atoms)}, {"unit": optimizer})


def _cluster(draw: random.Random, count: int) -> Cluster:
    """A random tree of links between the devices, and some links more; half of all clusters have mixed speeds."""
    mixed = draw.random() < 0.5
    speeds = [draw.choice((0.5, 1.0, 1.5)) if mixed else 1.0 for _ in range(count)]
    pairs = {(draw.randrange(new), new) for new in range(1, count)}
    pairs |= {(a, b) for a in range(count) for b in range(a + 1, count) if draw.random() < 0.4}
    links = [
        Link(f"d{a}", f"d{b}", FLOAT * 10 ** draw.uniform(1.5, 3.5), draw.choice((0.0, 0.01))) for a, b in sorted(pairs)
    ]
    devices = tuple(Device(f"d{n}", "host", KIND, 2**40, speed) for n, speed in enumerate(speeds))
    return Cluster("small", (Host("host"),), devices, (), tuple(links))
