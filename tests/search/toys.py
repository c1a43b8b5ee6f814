"""Small problems for the search: chains with costs, on hosts joined by one switch."""

from collections.abc import Sequence

from plait.cluster import Cluster, Device, DeviceKind, Host, Link
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, Value
from plait.search import Problem

KIND = DeviceKind("unit", 1e12, 1e12, 2**40, 1.0, "cuda")
OTHER = DeviceKind("other", 1e12, 1e12, 2**40, 1.0, "cuda")


def hosts(
    *sizes: int,
    inside: float = 1e9,
    uplink: float = 1e8,
    latency: float = 0.0,
    kinds: Sequence[DeviceKind] | None = None,
    memory: int = 2**40,
) -> Cluster:
    """Hosts of these many devices, all on one switch."""
    kinds = kinds or [KIND] * len(sizes)
    names = [f"h{number}" for number in range(len(sizes))]
    devices = tuple(
        Device(f"{host}/{number}", host, kind, memory)
        for host, size, kind in zip(names, sizes, kinds, strict=True)
        for number in range(size)
    )
    links = [Link(device.name, device.host, inside, latency) for device in devices]
    links += [Link(host, "switch", uplink, latency) for host in names]
    return Cluster("toy", tuple(map(Host, names)), devices, ("switch",), tuple(links))


def chain(
    seconds: Sequence[float], *, crossing: Sequence[int] | None = None, parameter: int = 0, saved: float = 0.0
) -> tuple[Graph, Costs]:
    """Atoms that take these seconds a row (a third forward), and send these bytes a row to the next."""
    size = len(seconds)
    crossing = crossing or [4] * (size - 1)
    graph = Graph(
        "chain",
        tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(size)),
        tuple(Value(f"v{n}", n, (n + 1,), (1, width), "int8", 0, True) for n, width in enumerate(crossing)),
        tuple(Parameter(f"p{n}", (parameter,), "int8", (n,), True, False) for n in range(size) if parameter),
    )
    atoms = tuple(AtomCost(0.0, s / 3, 0.0, 2 * s / 3, 0.0, saved, 0.0, s / 3) for s in seconds)
    return graph, Costs(
        graph.fingerprint,
        {"unit": atoms, "other": tuple(AtomCost(0.0, s, 0.0, 2 * s, 0.0, saved, 0.0, s) for s in seconds)},
        {kind: OptimizerCost(2.0, 0.0, 0.0) for kind in ("unit", "other")},
    )


def problem(cluster: Cluster, made: tuple[Graph, Costs], batch_size: int) -> Problem:
    graph, costs = made
    return Problem(graph, costs, cluster, batch_size)
