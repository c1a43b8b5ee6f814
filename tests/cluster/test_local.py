"""local:N, this machine as a cluster."""

import os

import pytest

from plait.cluster import load_cluster, local_cluster
from plait.errors import PlaitError


def test_processes_share_the_memory_and_the_cores():
    cluster = load_cluster("local:4")
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert [device.name for device in cluster.devices] == [f"local/cpu{number}" for number in range(4)]
    assert all(device.memory_bytes == physical // 4 for device in cluster.devices)
    assert cluster.hosts[0].compute_slots == len(os.sched_getaffinity(0))


def test_a_measurement_between_two_processes_can_be_put_in():
    cluster = local_cluster(3, bandwidth=5e9, latency=20e-6)
    assert cluster.bandwidth(0, 2) == 5e9
    assert cluster.latency(0, 2) == 20e-6


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("local:0", "local:0 asks for 0 processes, and a cluster has at least 1; write e.g. local:4"),
        ("local:x", 'cluster "local:x" does not say how many processes to run'),
        ("local:", "does not say how many processes to run"),
        ("local:-1", "does not say how many processes to run"),
        ("local", "as in local:4"),
    ],
)
def test_a_local_cluster_needs_a_number(spec, message):
    with pytest.raises(PlaitError) as caught:
        load_cluster(spec)
    assert message in str(caught.value)
