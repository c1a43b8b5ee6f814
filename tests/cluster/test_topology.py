"""The cluster as data: files, fingerprints, parts, and what it refuses to be."""

import json
import pickle

import pytest
from hypothesis import given, settings

from plait.cluster import PRESETS, Cluster, Device, DeviceKind, Host, Link, local_cluster
from plait.errors import PlaitError

from .strategies import graph_clusters, tiered_clusters

V100 = PRESETS["v100"]


def pair(**changes):
    parts = {
        "name": "pair",
        "hosts": (Host("host"),),
        "devices": (Device("a", "host", V100, 2**34), Device("b", "host", V100, 2**34)),
        "switches": (),
        "links": (Link("a", "b", 1e9, 1e-6),),
    }
    return Cluster(**(parts | changes))


@settings(deadline=None)
@given(tiered_clusters())
def test_json_gives_back_an_equal_cluster(cluster):
    read = Cluster.from_dict(json.loads(json.dumps(cluster.to_dict())))
    assert read == cluster
    assert read.fingerprint() == cluster.fingerprint()


@settings(deadline=None)
@given(graph_clusters())
def test_pickle_gives_back_an_equal_cluster_without_its_caches(cluster):
    cluster.route(0, len(cluster.devices) - 1)
    read = pickle.loads(pickle.dumps(cluster))
    assert read == cluster
    assert "_routes" not in vars(read)


def test_the_fingerprint_is_short_stable_and_sees_every_change():
    assert pair().fingerprint() == "c6dafba92561"
    assert pair(links=(Link("a", "b", 2e9, 1e-6),)).fingerprint() != pair().fingerprint()


def test_equal_numbers_written_differently_give_one_fingerprint():
    assert pair(links=(Link("a", "b", 1_000_000_000, 1e-6),)).fingerprint() == pair().fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2 and this Plait reads version 1"),
        ({"version": None}, "version None"),
        ({"links": "none"}, "links must be a list"),
        (
            {"links": [{"a": "a", "b": "b", "bandwidth": 0, "latency": 0}]},
            "it must be a finite number above 0",
        ),
        ({"kinds": []}, 'has the kind "v100", which this stored cluster does not hold'),
    ],
)
def test_a_damaged_stored_cluster_is_refused(change, message):
    with pytest.raises(PlaitError, match="stored cluster") as caught:
        Cluster.from_dict(pair().to_dict() | change)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": ()}, "no devices"),
        ({"switches": ("a",)}, 'the name "a" is given to a switch and to another device'),
        ({"hosts": (Host("host"), Host("host"))}, 'the name "host" is given to a host and to another host'),
        ({"hosts": (Host("my host"),)}, "has a space in it"),
        ({"hosts": (Host("hosst"),)}, 'not a host of this cluster. Did you mean "hosst"?'),
        ({"links": (Link("a", "c", 1e9, 0.0),)}, 'ends at "c", which is no device, host or switch'),
        ({"links": (Link("a", "b", 1e9, 0.0), Link("b", "a", 1e9, 0.0))}, "linked twice"),
        ({"links": ()}, 'devices "a" and "b" cannot reach each other'),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(changes, message):
    with pytest.raises(PlaitError) as caught:
        pair(**changes)
    assert message in str(caught.value)


def test_two_kinds_of_one_name_are_refused():
    other = DeviceKind("v100", 1e12, 1e9, 2**30, 0.5, "cuda")
    with pytest.raises(PlaitError, match='two different device kinds are both named "v100"'):
        pair(devices=(Device("a", "host", V100, 2**34), Device("b", "host", other, 2**34)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Link("a", "a", 1e9, 0.0), "joins a vertex to itself"),
        (lambda: Link("a", "b", 0.0, 0.0), "must be a finite number above 0"),
        (lambda: Link("a", "b", float("inf"), 0.0), "must be a finite number above 0"),
        (lambda: Link("a", "b", 1e9, -1.0), "must be 0 or more seconds"),
        (lambda: Host("host", 0), "at least one device must be able to compute"),
        (lambda: Device("a", "host", V100, 0), 'memory_bytes of device "a" is 0'),
        (lambda: Device("a", "host", V100, 1, -1.0), 'speed of device "a" is -1.0'),
        (lambda: DeviceKind("k", 1e12, 1e9, 2**30, 1.5, "cuda"), "efficiency"),
        (lambda: DeviceKind("k", 0.0, 1e9, 2**30, 0.5, "cuda"), "flops_per_second"),
    ],
)
def test_parts_that_cannot_be_are_refused(make, message):
    with pytest.raises(PlaitError) as caught:
        make()
    assert message in str(caught.value)


def test_channels_are_two_per_link():
    cluster = pair()
    assert cluster.num_channels == 2
    assert cluster.channel_ends(0) == ("a", "b")
    assert cluster.channel_ends(1) == ("b", "a")
    assert cluster.channel_bandwidth(1) == 1e9
    assert cluster.channel_latency(1) == 1e-6


def test_vertices_are_devices_then_hosts_then_switches():
    cluster = pair(switches=("s",))
    assert cluster.vertex_names == ("a", "b", "host", "s")
    assert cluster.vertex("s") == 3
    with pytest.raises(PlaitError, match=r'named "hots"\. Did you mean "host"'):
        cluster.vertex("hots")


def test_an_unlinked_vertex_has_no_route():
    with pytest.raises(PlaitError, match='"a" and "host" have no path'):
        pair().route(0, 2)


def test_devices_of_a_host():
    assert pair().devices_of("host") == (0, 1)
    assert pair().devices_of("elsewhere") == ()


def test_a_subset_keeps_the_order_asked_for_and_the_links_between():
    cluster = local_cluster(4)
    part = cluster.subset([3, 1])
    assert [device.name for device in part.devices] == ["local/cpu3", "local/cpu1"]
    assert part.bandwidth(0, 1) == cluster.bandwidth(3, 1)


def test_what_a_device_sustains():
    device = Device("a", "host", V100, 2**34, speed=0.5)
    assert device.sustained_flops_per_second == 125e12 * 0.45 * 0.5


def test_presets_are_named_as_they_are_found():
    assert all(name == kind.name for name, kind in PRESETS.items())
    assert {"v100", "v100-32gb", "a100", "a100-40gb", "h100", "h200", "1080ti", "t4", "a10", "l4"} <= set(PRESETS)
    assert {"3090", "4090", "cpu"} <= set(PRESETS)
