"""Chains, costs and clusters in round numbers for the classical planners."""

from collections.abc import Sequence

from hypothesis import strategies as st

from plait.cluster import Cluster, parse_cluster
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, Value
from plait.search.problem import Problem

KINDS = ("v100", "1080ti")
SLOWER = {"v100": 1.0, "1080ti": 2.0}


def problem(
    cluster: Cluster,
    seconds: Sequence[float],
    *,
    batch_size: int = 16,
    weights: Sequence[int] | int = 1000,
    sent: Sequence[int] | int = 4,
    saved: float = 10.0,
    micro_batches: int | None = None,
) -> Problem:
    """A chain of atoms that take these seconds per row on a V100, a third of them forward; sizes in bytes."""
    size = len(seconds)
    weight = [weights] * size if isinstance(weights, int) else weights
    message = [sent] * size if isinstance(sent, int) else sent
    graph = Graph(
        "chain",
        tuple(Atom(f"a{i}", "", (f"n{i}",)) for i in range(size)),
        tuple(Value(f"n{i}", i, (i + 1,), (1, message[i]), "int8", 0, True) for i in range(size - 1)),
        tuple(Parameter(f"p{i}", (weight[i],), "int8", (i,), True, False) for i in range(size)),
    )
    atoms = {
        kind: tuple(AtomCost(0.0, factor * s / 3, 0.0, factor * 2 * s / 3, 0.0, saved) for s in seconds)
        for kind, factor in SLOWER.items()
    }
    costs = Costs(graph.fingerprint, atoms, {kind: OptimizerCost(2.0, 0.0, 0.0) for kind in KINDS})
    return Problem(graph, costs, cluster, batch_size, micro_batches=micro_batches)


def hosts(
    *sizes: int, inside: str = "8 GB/s", across: str = "1 GB/s", kinds: Sequence[str] = (), memory: str = "16 GiB"
) -> Cluster:
    """Hosts with so many devices each."""
    kinds = kinds or ["v100"] * len(sizes)
    tables = (
        f'[[hosts]]\nname = "host{number}"\n'
        f'devices = [{{ kind = "{kind}", count = {size}, memory = "{memory}" }}]\n'
        f'in_host = {{ bandwidth = "{inside}", latency = "0 us" }}\n'
        f'uplink = {{ bandwidth = "{across}", latency = "0 us" }}\n'
        for number, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
    )
    return parse_cluster("".join(tables), source="hosts")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Anything from one device to three hosts, links from fast to slow, memory from plenty to too little."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    kinds = [draw(st.sampled_from(KINDS)) for _ in sizes]
    cluster = hosts(
        *sizes,
        kinds=kinds,
        across=draw(st.sampled_from(["1 MB/s", "1 GB/s"])),
        memory=draw(st.sampled_from(["100 kB", "16 GiB"])),
    )
    length = draw(st.integers(1, 8))
    numbers = st.lists(st.integers(1, 10_000), min_size=length, max_size=length)
    return problem(
        cluster,
        draw(st.lists(st.floats(1e-4, 0.1), min_size=length, max_size=length)),
        batch_size=draw(st.integers(1, 24)),
        weights=draw(numbers),
        sent=draw(numbers),
        saved=draw(st.sampled_from([10.0, 10_000.0])),
        micro_batches=draw(st.none() | st.integers(1, 4)),
    )
