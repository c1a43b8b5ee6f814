"""Gradient synchronisation: sums over ranks, several ways behind one interface."""

from plait.sync.errors import SumFailed
from plait.sync.launch import hierarchical, hook, in_network, parameter_server, passing, ring, serve
from plait.sync.strategies import strategy_of
from plait.sync.synchronizer import Synchronizer

__all__ = [
    "SumFailed",
    "Synchronizer",
    "hierarchical",
    "hook",
    "in_network",
    "parameter_server",
    "passing",
    "ring",
    "serve",
    "strategy_of",
]
