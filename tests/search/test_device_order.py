"""Recursive device ordering by minimum cuts."""

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from toys import KIND, hosts

from plait.cluster import Cluster, Device, Host, Link, load_cluster
from plait.search.device_order import device_order, minimum_cut


@given(st.integers(2, 7), st.data())
def test_the_cut_is_as_small_as_networkx_finds(size: int, data: st.DataObject) -> None:
    weights = np.zeros((size, size))
    for i in range(size):
        for j in range(i):
            weights[i, j] = weights[j, i] = data.draw(st.integers(1, 9))
    side = set(minimum_cut(weights))
    assert 0 < len(side) < size
    graph = nx.Graph()
    graph.add_weighted_edges_from((i, j, weights[i, j]) for i in range(size) for j in range(i))
    found = sum(weights[i, j] for i in side for j in range(size) if j not in side)
    assert found == nx.stoer_wagner(graph)[0]


def test_devices_of_a_host_are_neighbours_and_hosts_keep_their_order() -> None:
    assert device_order(hosts(4, 2, 1)) == list(range(7))


def test_well_connected_devices_become_neighbours() -> None:
    names = [f"d{number}" for number in range(4)]
    fast = [("d0", "d2"), ("d1", "d3")]
    links = [Link(a, b, 1e9 if (a, b) in fast else 1e6, 0.0) for n, a in enumerate(names) for b in names[n + 1 :]]
    links += [Link(name, f"h{name}", 1.0, 1.0) for name in names]
    cluster = Cluster(
        "pairs",
        tuple(Host(f"h{name}") for name in names),
        tuple(Device(name, f"h{name}", KIND, 2**30) for name in names),
        (),
        tuple(links),
    )
    assert device_order(cluster) == [0, 2, 1, 3]


def test_every_device_has_one_place_in_the_order() -> None:
    for name in ("graph-of-eight", "mixed-cards", "rack-tree"):
        cluster = load_cluster(f"examples/clusters/{name}.toml")
        assert sorted(device_order(cluster)) == list(range(len(cluster.devices)))
