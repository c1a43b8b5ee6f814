"""What a gradient sum takes, on the routes its bytes take."""

import pytest
from host_clusters import hosts
from pytest import approx

from plait.cluster import Aggregator, Cluster, parse_cluster
from plait.cost import SYNCHRONISATIONS, sync_seconds
from plait.errors import PlaitError
from plait.sync.chunks import CHUNK_BYTES

S, B, IN_HOST = 8e9, 1e9, 1e10
ETA = 0.98
SWITCH = (Aggregator("switch", 64, 8896, ETA),)
CHUNK = 2e-3  # of it, the first chunk in or the last one out


def seconds(name: str, cluster: Cluster, devices: list[int] | None = None) -> float:
    return sync_seconds(name, S, devices or list(range(len(cluster.devices))), cluster)[0]


def test_a_ring_is_as_slow_as_its_slowest_link() -> None:
    assert seconds("ring", hosts(4)) == approx(2 * 3 / 4 * S / IN_HOST)
    assert seconds("ring", hosts(2, 2)) == approx(2 * 3 / 4 * S / B)


def test_a_ring_visits_the_hosts_one_after_the_other() -> None:
    cluster = hosts(2, 2)
    assert sync_seconds("ring", S, [0, 2, 1, 3], cluster) == sync_seconds("ring", S, [0, 1, 2, 3], cluster)


def test_a_hierarchical_sum_sends_each_byte_over_the_uplinks_once_per_host() -> None:
    assert seconds("hierarchical", hosts(4, 4)) == approx(2 * 3 / 4 * S / IN_HOST + 2 * 1 / 2 * S / B)
    assert seconds("hierarchical", hosts(2, 2, 2)) == approx(2 * 1 / 2 * S / IN_HOST + 2 * 2 / 3 * S / B)


def test_within_one_host_or_with_one_device_in_each_a_hierarchical_sum_is_a_ring() -> None:
    for cluster in (hosts(4, latency=1e-3), hosts(1, 1, 1, latency=1e-3)):
        assert seconds("hierarchical", cluster) == approx(seconds("ring", cluster))


def test_uneven_hosts_share_as_many_shards_as_the_smallest_has_devices() -> None:
    within = 2 * 2 / 3 * S / IN_HOST
    assert seconds("hierarchical", hosts(3, 1)) == approx(within + 2 * 1 / 2 * S / B)


def test_a_parameter_server_is_limited_by_the_servers_uplink() -> None:
    assert seconds("parameter-server", hosts(1, 1, 1, 1)) == approx(3 * S / B, rel=CHUNK)
    assert seconds("parameter-server", hosts(2, 1)) == approx(S / B, rel=CHUNK)  # one worker is in the same host


def test_what_is_too_small_to_be_cut_comes_in_before_it_goes_out() -> None:
    assert sync_seconds("parameter-server", 1e6, [0, 1, 2, 3], hosts(1, 1, 1, 1))[0] == approx(2 * 3 * 1e6 / B)


def test_servers_of_shards_move_what_a_ring_moves() -> None:
    assert seconds("sharded-parameter-server", hosts(1, 1, 1, 1)) == approx(2 * 3 / 4 * S / B, rel=CHUNK)
    shared = 2 * 2 * 2 / 4 * S / B  # two devices' shards to two others, and their results, by one uplink
    assert seconds("sharded-parameter-server", hosts(2, 2)) == approx(shared, rel=CHUNK)


def test_rounds_add_their_latencies() -> None:
    cluster = hosts(2, 2, latency=1e-3)
    names = ("ring", "hierarchical", "parameter-server", "sharded-parameter-server")
    way = {name: seconds(name, cluster) - seconds(name, hosts(2, 2)) for name in names}
    in_host, between = 2e-3, 4e-3
    assert way["ring"] == approx(2 * 3 * between)
    assert way["hierarchical"] == approx(2 * in_host + 2 * between)
    for name in ("parameter-server", "sharded-parameter-server"):
        assert way[name] == approx(2 * between)


def test_passing_sends_each_byte_over_an_uplink_once() -> None:
    assert seconds("passing", hosts(1, 1, 1, 1, aggregators=SWITCH)) == approx(S / B / ETA)
    assert seconds("passing", hosts(4, 4, 4, 4, aggregators=SWITCH)) == approx(S / B / ETA, rel=CHUNK)
    # Within hosts that are no faster than the uplinks the in-host sum passes each device's link, and its shard too.
    slow = hosts(2, 2, in_host=B, aggregators=SWITCH)
    assert seconds("passing", slow) == approx(2 * 1 / 2 * S / B + 1 / 2 * S / B / ETA, rel=CHUNK)


def test_in_network_sums_send_each_devices_bytes_over_the_uplink() -> None:
    assert seconds("in-network", hosts(4, 4, aggregators=SWITCH)) == approx(4 * S / B / ETA)


@pytest.mark.parametrize("name", ["in-network", "passing"])
def test_within_a_host_there_is_no_use_for_a_switch(name: str) -> None:
    assert seconds(name, hosts(4)) == seconds("ring", hosts(4))


def test_the_slots_of_a_switch_limit_what_is_under_way() -> None:
    few = (Aggregator("switch", 1, 1000, ETA),)
    round_trip = 2 * 2 * 1e-3  # two links there, two back
    chunks = S / CHUNK_BYTES
    cluster = hosts(1, 1, latency=1e-3, aggregators=few)
    assert seconds("passing", cluster) == approx(S * round_trip / 1000 + chunks * round_trip)


def test_switches_of_racks_pass_on_one_stream() -> None:
    rate = 1e9
    tree = """
    [kinds.cpu]
    flops = "1 GFLOP/s"
    memory = "1 GB"
    memory_bandwidth = "1 GB/s"
    [[hosts]]
    name = "h"
    count = 4
    devices = [{ kind = "cpu" }]
    in_host = { bandwidth = "10 GB/s", latency = "0 s" }
    uplink = { to = "rack", bandwidth = "1 GB/s", latency = "0 s" }
    [[switches]]
    name = "rack"
    count = 2
    uplink = { to = "spine", bandwidth = "1 GB/s", latency = "0 s" }
    RACK
    [[switches]]
    name = "spine"
    aggregate = { efficiency = 0.5 }
    """
    spine_alone = parse_cluster(tree.replace("RACK", ""), source="tree")
    racks_too = parse_cluster(tree.replace("RACK", "aggregate = { efficiency = 0.5 }"), source="tree")
    assert seconds("passing", spine_alone) == approx(2 * S / rate / 0.5)
    assert seconds("passing", racks_too) == approx(S / rate / 0.5)


def test_without_a_switch_that_sums_the_message_says_how_to_have_one() -> None:
    with pytest.raises(PlaitError, match=r"no switch of cluster hosts sums packets.*aggregate = \{\}"):
        seconds("passing", hosts(1, 1))


@pytest.mark.parametrize("name", SYNCHRONISATIONS)
def test_one_device_has_nothing_to_sum(name: str) -> None:
    assert sync_seconds(name, S, [0], hosts(2)) == (0.0, ())


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(PlaitError, match="'gossip'; choose one of ring, hierarchical, parameter-server"):
        sync_seconds("gossip", S, [0, 1], hosts(2))
