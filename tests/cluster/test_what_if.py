"""What if the cluster were another: what a change changes, what it leaves alone, and what it answers to mistakes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.cluster import PRESETS, load_cluster, local_cluster, parse_cluster
from plait.cluster.what_if import KEYS, changed, parse_changes
from plait.errors import PlaitError

HOSTS = """
[[hosts]]
name = "node"
count = {count}
devices = [{{ kind = "v100", count = 2 }}]
in_host = {{ bandwidth = "12 GB/s", latency = "5 us" }}
uplink = {{ bandwidth = "25 Gbit/s", latency = "20 us" }}
"""
RACKS = (
    HOSTS.replace("uplink = {{", 'uplink = {{ to = "rack",')
    + '[[switches]]\nname = "rack"\ncount = 2\n'
    + 'uplink = {{ to = "spine", bandwidth = "100 Gbit/s", latency = "3 us" }}\n'
    + '[[switches]]\nname = "spine"\n'
)


def cluster(count, text=HOSTS):
    return parse_cluster(text.format(count=count), source="test", default_name="lab")


def what_if(text, start):
    return changed(start, parse_changes(text))


def parts(of):
    return of.hosts, of.devices, of.switches, set(of.links)


def test_the_uplink_of_every_host_changes_and_nothing_else():
    before, after = cluster(2), what_if("uplink=100 Gbit/s", cluster(2))
    assert after.bandwidth(0, 3) == before.bandwidth(0, 1) == 12e9, "the in-host tier is the narrowest now"
    assert after.latency(0, 3) == before.latency(0, 3)
    assert after.devices == before.devices


def test_in_host_is_the_tier_of_the_devices():
    after = what_if("in_host=600 GB/s, in_host_latency=0", cluster(2))
    assert (after.bandwidth(0, 1), after.latency(0, 1), after.bandwidth(0, 3)) == (600e9, 0.0, 3.125e9)


def test_links_between_switches_are_a_tier_of_their_own():
    after = what_if("switches=1 Gbit/s", cluster(4, RACKS))
    assert after.bandwidth(0, 2) == 3.125e9, "within a rack"
    assert after.bandwidth(0, 7) == 0.125e9, "between racks"


def test_devices_of_another_kind_bring_their_memory():
    after = what_if("devices=h100", cluster(2))
    assert {(d.kind, d.memory_bytes) for d in after.devices} == {(PRESETS["h100"], PRESETS["h100"].memory_bytes)}


def test_memory_overrides_the_new_kinds_own():
    after = what_if("devices=h100, memory=40 GiB", cluster(2))
    assert {device.memory_bytes for device in after.devices} == {40 * 2**30}


def test_speed_is_of_every_device():
    assert {device.speed for device in what_if("speed=0.5", local_cluster(2)).devices} == {0.5}


@pytest.mark.parametrize("text", [HOSTS, RACKS])
@given(before=st.integers(1, 9), after=st.integers(1, 9))
def test_more_or_fewer_hosts_are_what_a_file_with_that_count_says(text, before, after):
    # Of one rack's hosts there is nothing to tell that there were two racks.
    if text is RACKS and before == 1:
        before = 2
    assert parts(what_if(f"hosts={after}", cluster(before, text))) == parts(cluster(after, text))


def test_the_name_says_what_was_changed():
    assert what_if("hosts=3, memory=8 GiB", cluster(2)).name == "lab with hosts=3, memory=8 GiB"


def said(text, start):
    with pytest.raises(PlaitError) as caught:
        what_if(text, start)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("uplnk=1 GB/s", 'Did you mean "uplink"?'),
        ("uplink", "KEY=VALUE"),
        ("uplink=", "KEY=VALUE"),
        ("uplink=25", "has no unit"),
        ("memory=1 Gbit", "not a size in bytes"),
        ("devices=v10", 'Did you mean "v100"?'),
        ("hosts=2.5", "whole number"),
        ("hosts=0", "at least 1"),
        ("speed=fast", "must be a number"),
        ("speed=-1", "above 0"),
        ("hosts=2, hosts=3", "changes hosts twice"),
        ("switches=1 GB/s", "no links between switches"),
    ],
)
def test_a_mistake_is_told_with_value_and_rule(text, words):
    assert words in said(text, cluster(2))


def test_an_unknown_key_lists_the_keys_there_are():
    assert all(key in said("colour=red", cluster(2)) for key in KEYS)


@pytest.mark.parametrize("path", ["mixed-cards", "graph-of-eight", "nvlink-host"])
def test_hosts_that_cannot_be_copied_are_refused(path):
    assert "all alike" in said("hosts=4", load_cluster(f"examples/clusters/{path}.toml"))


def test_processes_of_this_machine_are_no_hosts_to_copy():
    assert "one [[hosts]] table" in said("hosts=4", local_cluster(2))


def test_a_cable_between_two_hosts_cannot_be_copied():
    cable = '[[links]]\nbetween = ["node0", "node1"]\nbandwidth = "1 GB/s"\nlatency = "1 us"\n'
    assert "all alike" in said("hosts=4", cluster(2, HOSTS + cable))
