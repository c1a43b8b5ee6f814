"""Hosts, devices, links and switches: what a plan runs on. See docs/cluster.md for the file format."""

from plait.cluster.load import load_cluster, parse_cluster
from plait.cluster.local import local_cluster
from plait.cluster.parts import Aggregator, Device, DeviceKind, Host, Link
from plait.cluster.presets import PRESETS
from plait.cluster.topology import Cluster

__all__ = [
    "PRESETS",
    "Aggregator",
    "Cluster",
    "Device",
    "DeviceKind",
    "Host",
    "Link",
    "load_cluster",
    "local_cluster",
    "parse_cluster",
]
