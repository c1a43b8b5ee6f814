"""Devices named in captured code: `torch.zeros(..., device=...)` and `.to(...)` keep the one of the capture."""

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from plait.graph.regions import regions_of


def move_graph(graph: fx.Graph, device: torch.device) -> None:
    """Puts `device` in the place of every device named in `graph`, also inside its regions."""
    for node in graph.nodes:
        if node.op == "call_function":
            node.args = move_arguments(node.args, device)
            node.kwargs = move_arguments(node.kwargs, device)
            for inner, _ in regions_of(node):
                move_graph(inner, device)
                assert inner.owning_module is not None
                inner.owning_module.recompile()


def move_arguments(arguments: Any, device: torch.device) -> Any:
    return map_aggregate(arguments, lambda value: device if isinstance(value, torch.device) else value)
