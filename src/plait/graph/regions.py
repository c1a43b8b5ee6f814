"""Autocast, no-grad and chosen regions: nodes that run a graph of their own.

The capture makes each such region one node (`branches` the chosen ones). What happens inside still matters
outside: it may overwrite a buffer, hand out a view of what came in, draw random numbers or mix rows.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._ops import HigherOrderOperator

from plait.graph.randomness import called

Region = Callable[..., Any]


class _Choose(HigherOrderOperator):
    """Runs one of two regions. A higher-order operator, so that generated code can name it as it names PyTorch's."""

    def __init__(self) -> None:
        super().__init__("plait_choose")

    def __call__(self, condition: Tensor, if_true: Region, if_false: Region, *operands: Any) -> Any:
        return (if_true if bool(condition) else if_false)(*operands)


choose = _Choose()


def choose_longer(_: Tensor, if_true: fx.GraphModule, if_false: fx.GraphModule, *operands: Any) -> Any:
    """What a choice costs where it skips nothing."""
    return max(if_true, if_false, key=lambda region: len(region.graph.nodes))(*operands)


def regions_of(node: fx.Node) -> Iterator[tuple[fx.Graph, tuple[Any, ...]]]:
    """The graphs that `node` runs, each with what is passed to its inputs, in their order."""
    target, args = called(node)
    if node.op != "call_function" or not isinstance(target, HigherOrderOperator):
        return
    graphs = [(index, graph) for index, arg in enumerate(args) if (graph := _graph_behind(arg)) is not None]
    if graphs:
        operands = tuple(pytree.tree_leaves(args[graphs[-1][0] + 1 :]))
        for _, graph in graphs:
            yield graph, operands


def operands_where(node: fx.Node, holds: Callable[[fx.Graph, fx.Node], bool]) -> Iterator[fx.Node]:
    """What `node` passes to those inputs of its regions for which `holds(graph, input)`."""
    for graph, operands in regions_of(node):
        for inner, operand in zip(graph.find_nodes(op="placeholder"), operands, strict=False):
            if isinstance(operand, fx.Node) and holds(graph, inner):
                yield operand


def _graph_behind(arg: object) -> fx.Graph | None:
    if not (isinstance(arg, fx.Node) and arg.op == "get_attr"):
        return None
    holder: Any = arg.graph.owning_module
    for part in str(arg.target).split("."):
        holder = getattr(holder, part, None)
    return holder.graph if isinstance(holder, fx.GraphModule) else None
