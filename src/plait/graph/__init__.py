"""From an ordinary model to a chain of atoms that can be cut: capture, constraints, stages."""

from plait.graph.blocks import Block, repeated_blocks
from plait.graph.build import Model, build_graph
from plait.graph.capture import Loss, batch_rows
from plait.graph.errors import CaptureError
from plait.graph.graph import Atom, Graph, Parameter, RowMixer, Value

__all__ = [
    "Atom",
    "Block",
    "CaptureError",
    "Graph",
    "Loss",
    "Model",
    "Parameter",
    "RowMixer",
    "Value",
    "batch_rows",
    "build_graph",
    "repeated_blocks",
]
