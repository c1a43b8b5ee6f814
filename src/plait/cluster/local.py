"""This machine as a cluster of N processes."""

import os
from dataclasses import replace

import torch

from plait.cluster.parts import Device, DeviceKind, Host, Link
from plait.cluster.presets import PRESETS
from plait.cluster.topology import Cluster
from plait.errors import PlaitError

# What two processes get from gloo over the loopback device of an ordinary server: a few copies through the
# kernel per byte, and two wake-ups per message. Stand-ins until `plait probe` measures this machine.
LOOPBACK_BANDWIDTH = 2e9
LOOPBACK_LATENCY = 60e-6


def local_cluster(
    num_processes: int,
    *,
    kind: DeviceKind = PRESETS["cpu"],
    bandwidth: float = LOOPBACK_BANDWIDTH,
    latency: float = LOOPBACK_LATENCY,
) -> Cluster:
    """One host "local" whose devices are processes on its CPU or GPUs, with an even share of the memory each.

    `bandwidth` (bytes per second) and `latency` (seconds) are those between two processes, as a probe
    measures them. A message takes two links, to the host and from it, so each has half the latency.
    """
    if num_processes < 1:
        raise PlaitError(
            f"local:{num_processes} asks for {num_processes} processes, and a cluster has at least 1; "
            "write e.g. local:4"
        )
    on_gpu = kind.backend == "cuda"
    slots = max(torch.cuda.device_count(), 1) if on_gpu else _usable_cores()
    if on_gpu:
        memory_bytes = kind.memory_bytes // max(1, -(-num_processes // slots))
    else:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // num_processes
    name = "gpu" if on_gpu else "cpu"
    devices = tuple(Device(f"local/{name}{number}", "local", kind, memory_bytes) for number in range(num_processes))
    return Cluster(
        name=f"local:{num_processes}",
        # More processes than cores (or GPUs) take turns.
        hosts=(Host("local", compute_slots=slots),),
        devices=devices,
        switches=(),
        links=tuple(Link(device.name, "local", bandwidth, latency / 2) for device in devices),
    )


def kind_here() -> DeviceKind:
    """The devices `local:N` stands for: this machine's GPUs if PyTorch sees any, else its CPU.

    A GPU without a preset of its own takes the rates of the a100, which only matter until it is measured.
    """
    if not torch.cuda.is_available():
        return PRESETS["cpu"]
    found = torch.cuda.get_device_properties(0)
    name = found.name.lower().replace("nvidia", "").replace("geforce", "").strip().replace(" ", "-")
    preset = next((kind for key, kind in PRESETS.items() if key in name.split("-")), PRESETS["a100"])
    return replace(preset, name=name, memory_bytes=found.total_memory)


def _usable_cores() -> int:
    """Cores this process may run on: fewer than the machine's under taskset, Slurm or a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
