"""Splitting a stage's layers over the devices of a tensor group."""

from plait.graph.sharding.sharding import Collective, Sharding, split_sizes

__all__ = ["Collective", "Sharding", "split_sizes"]
