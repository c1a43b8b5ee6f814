"""Random cases of a few atoms and devices: chains with skips, devices joined anyhow, and a plan for each."""

from dataclasses import dataclass

from hypothesis import strategies as st

from plait.cluster import Cluster, Device, DeviceKind, Host, Link
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, RowMixer, Value

KIND = DeviceKind("unit", 1e12, 1e12, 2**40, 1.0, "cpu")


@dataclass(frozen=True)
class Search:
    graph: Graph
    costs: Costs
    cluster: Cluster
    batch_size: int
    micro_batches: int

    @property
    def arguments(self) -> tuple[Graph, Costs, Cluster, int]:
        return self.graph, self.costs, self.cluster, self.batch_size


@st.composite
def searches(draw: st.DrawFn, *, atoms: int = 4, devices: int = 3) -> Search:
    graph = draw(_graphs(draw(st.integers(1, atoms))))
    micro_batches = draw(st.integers(1, 3))
    batch_size = micro_batches * devices + draw(st.integers(0, 3))
    return Search(graph, draw(_costs(graph)), draw(_clusters(draw(st.integers(1, devices)))), batch_size, micro_batches)


@st.composite
def _graphs(draw: st.DrawFn, count: int) -> Graph:
    values = []
    for producer in range(count - 1):
        consumers = {producer + 1} | draw(st.sets(st.integers(producer + 1, count - 1), max_size=1))
        shape = (1, draw(st.sampled_from([1, 10, 100])))
        values.append(
            Value(f"v{producer}", producer, tuple(sorted(consumers)), shape, "float32", 0, draw(st.booleans()))
        )
    parameters = tuple(
        Parameter(f"p{atom}", (draw(st.sampled_from([1, 30, 1000])),), "float32", (atom,), True, False)
        for atom in range(count)
    )
    coupled = draw(st.sets(st.integers(0, count - 1), max_size=1))
    mixers = tuple(RowMixer(atom, f"a{atom}", "", "statistics", "exchange") for atom in coupled)
    return Graph("small", tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(count)), tuple(values), parameters, mixers)


@st.composite
def _costs(draw: st.DrawFn, graph: Graph) -> Costs:
    seconds = st.sampled_from([0.0, 0.1, 0.5, 2.0])
    atoms = tuple(AtomCost(draw(seconds), draw(seconds), draw(seconds), draw(seconds), 0.0, 8.0) for _ in graph.atoms)
    return Costs(
        graph.fingerprint, {"unit": atoms}, {"unit": OptimizerCost(2.0, draw(st.sampled_from([0.0, 1e-3])), 0.0)}
    )


@st.composite
def _clusters(draw: st.DrawFn, count: int) -> Cluster:
    """A tree of links and some more; one device a host, or all in one."""
    pairs = {(draw(st.integers(0, new - 1)), new) for new in range(1, count)}
    pairs |= {(a, b) for a in range(count) for b in range(a + 1, count) if draw(st.booleans())}
    width = st.sampled_from([100.0, 1e3, 1e5])
    links = tuple(Link(f"d{a}", f"d{b}", draw(width), draw(st.sampled_from([0.0, 0.1]))) for a, b in sorted(pairs))
    apart = draw(st.booleans())
    hosts = [f"h{n}" if apart else "h0" for n in range(count)]
    speeds = [draw(st.sampled_from([1.0, 1.0, 0.5])) for _ in range(count)]
    devices = tuple(Device(f"d{n}", hosts[n], KIND, 2**40, speeds[n]) for n in range(count))
    return Cluster("small", tuple(map(Host, dict.fromkeys(hosts))), devices, (), links)
