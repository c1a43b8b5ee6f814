"""Routes: connected, widest, the same links both ways, and quick for a thousand devices."""

import itertools
import math
import time

import networkx
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.cluster import PRESETS, Cluster, Device, Host, Link, parse_cluster

from .strategies import graph_clusters, tiered_clusters

any_cluster = st.one_of(tiered_clusters(), graph_clusters())


def pairs_of_devices(cluster):
    return itertools.product(range(len(cluster.devices)), repeat=2)


def paths_by_rule(cluster, a, b):
    """All simple paths from a to b that the rule allows, by brute force, as lists of links."""
    graph = networkx.Graph()
    graph.add_nodes_from(cluster.vertex_names)
    for link in cluster.links:
        graph.add_edge(link.a, link.b, link=link)
    devices = {device.name for device in cluster.devices}
    names = networkx.all_simple_paths(graph, cluster.vertex_names[a], cluster.vertex_names[b])
    all_paths = [(path, [graph.edges[ends]["link"] for ends in itertools.pairwise(path)]) for path in names]
    without_relays = [links for path, links in all_paths if not devices.intersection(path[1:-1])]
    return without_relays or [links for _, links in all_paths]


def rank(links):
    latency = round(math.fsum(link.latency for link in links), 15)
    return (-min(link.bandwidth for link in links), latency, len(links))


def devices_named(*names, host="host"):
    return tuple(Device(name, host, PRESETS["v100"], 2**34) for name in names)


@settings(deadline=None)
@given(any_cluster)
def test_a_route_is_connected_and_ends_where_it_should(cluster):
    for a, b in pairs_of_devices(cluster):
        position = cluster.vertex_names[a]
        for channel in cluster.route(a, b):
            start, position_after = cluster.channel_ends(channel)
            assert start == position
            position = position_after
        assert position == cluster.vertex_names[b]


@settings(deadline=None)
@given(any_cluster)
def test_bandwidth_and_latency_are_those_of_the_route(cluster):
    for a, b in pairs_of_devices(cluster):
        route = cluster.route(a, b)
        assert cluster.bandwidth(a, b) == min(map(cluster.channel_bandwidth, route), default=math.inf)
        assert cluster.latency(a, b) == math.fsum(map(cluster.channel_latency, route))


@settings(deadline=None)
@given(any_cluster)
def test_the_way_back_uses_the_same_links(cluster):
    for a, b in pairs_of_devices(cluster):
        assert cluster.route(b, a) == tuple(channel ^ 1 for channel in reversed(cluster.route(a, b)))
        assert cluster.bandwidth(a, b) == cluster.bandwidth(b, a)
        assert cluster.latency(a, b) == cluster.latency(b, a)


@settings(deadline=None)
@given(any_cluster)
def test_no_allowed_path_is_better_than_the_route(cluster):
    vertices = range(len(cluster.vertex_names))
    connected = {number for number in vertices if cluster.vertex_names[number] in reachable(cluster)}
    for a, b in itertools.combinations(sorted(connected), 2):
        route = [cluster.links[channel >> 1] for channel in cluster.route(a, b)]
        assert rank(route) == min(map(rank, paths_by_rule(cluster, a, b)))


def reachable(cluster):
    graph = networkx.Graph((link.a, link.b) for link in cluster.links)
    first = cluster.devices[0].name
    return networkx.node_connected_component(graph, first) if first in graph else {first}


def test_a_device_to_itself_needs_no_link():
    cluster = Cluster("one", (Host("host"),), devices_named("only"), (), ())
    assert cluster.route(0, 0) == ()
    assert cluster.bandwidth(0, 0) == math.inf
    assert cluster.latency(0, 0) == 0


def test_in_host_transfers_take_two_channels_at_the_tier_s_bandwidth():
    cluster = parse_cluster(
        """
        [[hosts]]
        name = "node"
        devices = [{ kind = "v100", count = 3 }]
        in_host = { bandwidth = "12 GB/s", latency = "5 us" }
        """,
        source="test",
    )
    ends = [cluster.channel_ends(channel) for channel in cluster.route(0, 2)]
    assert ends == [("node/gpu0", "node"), ("node", "node/gpu2")]
    assert cluster.bandwidth(0, 2) == 12e9
    assert cluster.latency(0, 2) == 10e-6


def test_a_devices_own_link_wins_over_its_host_when_it_is_wider():
    links = (Link("a", "host", 12e9, 1e-6), Link("b", "host", 12e9, 1e-6), Link("a", "b", 50e9, 9e-6))
    cluster = Cluster("pair", (Host("host"),), devices_named("a", "b"), (), links)
    assert cluster.route(0, 1) == (4,)


def test_a_narrow_direct_link_is_used_rather_than_a_device_in_between():
    links = (Link("a", "b", 1e9, 1e-6), Link("a", "c", 10e9, 1e-6), Link("c", "b", 10e9, 1e-6))
    cluster = Cluster("triangle", (Host("host"),), devices_named("a", "b", "c"), (), links)
    assert cluster.route(0, 1) == (0,)


def test_devices_pass_messages_on_where_there_is_no_other_way():
    links = (Link("a", "b", 1e9, 1e-6), Link("b", "c", 2e9, 1e-6))
    cluster = Cluster("chain", (Host("host"),), devices_named("a", "b", "c"), (), links)
    assert cluster.route(0, 2) == (0, 2)
    assert cluster.bandwidth(0, 2) == 1e9


def test_latency_decides_among_paths_that_are_wide_enough_for_the_narrow_end():
    """The wider way between x and y is slower, and useless behind a narrow link."""
    links = (
        Link("a", "x", 1e9, 0.0),
        Link("x", "y", 1e9, 1e-6),
        Link("x", "z", 10e9, 5e-6),
        Link("z", "y", 10e9, 5e-6),
        Link("y", "b", 10e9, 0.0),
    )
    cluster = Cluster("bypass", (Host("host"),), devices_named("a", "b"), ("x", "y", "z"), links)
    assert cluster.route(0, 1) == (0, 2, 8)


def test_hosts_and_switches_can_be_routed_to():
    cluster = parse_cluster(
        """
        [[hosts]]
        name = "node"
        count = 2
        devices = [{ kind = "v100" }]
        in_host = { bandwidth = "12 GB/s", latency = "5 us" }
        uplink = { bandwidth = "25 Gbit/s", latency = "20 us" }
        """,
        source="test",
    )
    route = cluster.route(cluster.vertex("node0"), cluster.vertex("switch"))
    assert [cluster.channel_ends(channel) for channel in route] == [("node0", "switch")]
    assert cluster.bandwidth(cluster.vertex("switch"), cluster.vertex("node1/gpu0")) == 3.125e9


def test_a_thousand_devices_are_quick():
    started = time.perf_counter()
    cluster = parse_cluster(
        """
        [[hosts]]
        name = "node"
        count = 128
        devices = [{ kind = "h100", count = 8 }]
        in_host = { bandwidth = "450 GB/s", latency = "2 us" }
        uplink = { to = "rack", bandwidth = "400 Gbit/s", latency = "5 us" }
        [[switches]]
        name = "rack"
        count = 16
        uplink = { to = "spine", bandwidth = "1600 Gbit/s", latency = "2 us" }
        [[switches]]
        name = "spine"
        """,
        source="test",
    )
    for query in range(100_000):
        a, b = query * 7919 % 1024, query * 104_729 % 1023
        cluster.route(a, b)
        cluster.bandwidth(a, b)
    # Under a second on an idle server; the limit leaves room for a busy one, not for 1,024 x 1,024 searches.
    assert time.perf_counter() - started < 5
