"""This machine as a cluster of N processes."""

import os

from plait.cluster.parts import Device, Host, Link
from plait.cluster.presets import PRESETS
from plait.cluster.topology import Cluster
from plait.errors import PlaitError

# What two processes get from gloo over the loopback device of an ordinary server: a few copies through the
# kernel per byte, and two wake-ups per message. Stand-ins until `plait probe` measures this machine.
LOOPBACK_BANDWIDTH = 2e9
LOOPBACK_LATENCY = 60e-6


def local_cluster(
    num_processes: int, *, bandwidth: float = LOOPBACK_BANDWIDTH, latency: float = LOOPBACK_LATENCY
) -> Cluster:
    """One host "local" whose devices are processes on the CPU, with an even share of its memory each.

    `bandwidth` (bytes per second) and `latency` (seconds) are those between two processes, as a probe
    measures them. A message takes two links, to the host and from it, so each has half the latency.
    """
    if num_processes < 1:
        raise PlaitError(
            f"local:{num_processes} asks for {num_processes} processes, and a cluster has at least 1; "
            "write e.g. local:4"
        )
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // num_processes
    devices = tuple(
        Device(f"local/cpu{number}", "local", PRESETS["cpu"], memory_bytes) for number in range(num_processes)
    )
    return Cluster(
        name=f"local:{num_processes}",
        # More processes than cores take turns.
        hosts=(Host("local", compute_slots=_usable_cores()),),
        devices=devices,
        switches=(),
        links=tuple(Link(device.name, "local", bandwidth, latency / 2) for device in devices),
    )


def _usable_cores() -> int:
    """Cores this process may run on: fewer than the machine's under taskset, Slurm or a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
