"""Tensor parallelism of any captured graph: layouts, the rules that carry them from node to node, and the code."""

from plait.graph.sharding.sharding import Collective, Sharding, split_sizes

__all__ = ["Collective", "Sharding", "split_sizes"]
