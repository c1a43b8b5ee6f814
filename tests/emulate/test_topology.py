"""Messages on the bed take the routes that the simulator prices."""

import random
from pathlib import Path

import pytest

from plait.cluster import PRESETS, Cluster, Device, Host, Link, load_cluster
from plait.emulate.topology import Topology, topology
from plait.errors import PlaitError

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "clusters").glob("*.toml"))


def graph_of(links: list[tuple[str, str, float, float]], devices: int) -> Cluster:
    """Devices d0, d1, … in hosts of their own, and switches for all other names."""
    kind = PRESETS["v100"]
    names = [f"d{number}" for number in range(devices)]
    hosts = tuple(Host(f"h{number}") for number in range(devices))
    switches = tuple(sorted({end for a, b, *_ in links for end in (a, b)} - set(names)))
    cards = tuple(Device(n, f"h{i}", kind, kind.memory_bytes) for i, n in enumerate(names))
    return Cluster("graph", hosts, cards, switches, tuple(Link(*link) for link in links))


def way(found: Topology, source: int, sink: int) -> list[str]:
    """The wires a packet takes, as the kernel would choose them."""
    target, at, wires = found.vertices[sink].address, source, list[str]()
    while at != sink:
        hops = [h for h in found.hops if (h.at, h.target) == (at, target)]
        own = [h for h in hops if h.source == found.vertices[source].address]
        hop = (own or [h for h in hops if h.source is None])[0]
        wires.append(hop.interface)
        at = next(i for i, vertex in enumerate(found.vertices) if vertex.address == hop.next_hop)
    return wires


def check_ways(cluster: Cluster, devices: list[int]) -> None:
    found = topology(cluster, devices)
    for i, a in enumerate(devices):
        for j, b in enumerate(devices):
            if i != j:
                assert way(found, i, j) == [f"wire{channel >> 1}" for channel in cluster.route(a, b)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_packets_take_the_priced_routes(path: Path) -> None:
    cluster = load_cluster(str(path))
    check_ways(cluster, list(range(min(len(cluster.devices), 12))))


@pytest.mark.parametrize("seed", range(20))
def test_packets_take_the_priced_routes_of_any_graph(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"d{n}" for n in range(6)] + [f"s{n}" for n in range(4)]
    tree = [(names[i], names[draw.randrange(i)]) for i in range(1, len(names))]
    more = [tuple(draw.sample(names, 2)) for _ in range(8)]
    pairs = {frozenset(pair) for pair in (*tree, *more)}
    links = [
        (*sorted(p), draw.choice([1e9, 2e9, 5e9]), draw.choice([1e-6, 2e-6, 9e-6])) for p in sorted(map(sorted, pairs))
    ]
    cluster = graph_of(links, 6)
    check_ways(cluster, list(range(6)))
    check_ways(cluster, [4, 1, 3])


def test_two_messages_for_one_device_may_leave_a_switch_by_different_wires() -> None:
    # d0 comes over a narrow link and takes the quick way to d2; d1 comes over a wide one and takes the wide way.
    links = [
        ("d0", "s0", 1e9, 1e-6),
        ("d1", "s0", 9e9, 1e-6),
        ("s0", "s1", 9e9, 50e-6),
        ("s0", "s2", 1e9, 1e-6),
        ("s2", "s1", 1e9, 1e-6),
        ("s1", "d2", 9e9, 1e-6),
    ]
    cluster = graph_of(links, 3)
    found = topology(cluster, [0, 1, 2])
    assert any(hop.source for hop in found.hops)
    check_ways(cluster, [0, 1, 2])


def test_only_what_messages_pass_is_built() -> None:
    cluster = load_cluster(str(next(path for path in EXAMPLES if path.stem == "two-hosts")))
    own = list(cluster.devices_of(cluster.hosts[0].name))
    found = topology(cluster, own)
    assert {vertex.name for vertex in found.vertices[len(own) :]} == {cluster.hosts[0].name}
    assert found.num_devices == len(own) == len(found.wires)


def test_a_cluster_too_large_for_one_machine_is_refused() -> None:
    names = [f"d{n}" for n in range(300)]
    cluster = graph_of([(name, "s", 1e9, 1e-6) for name in names], 300)
    with pytest.raises(PlaitError, match="one machine can hold 250"):
        topology(cluster, range(300))
