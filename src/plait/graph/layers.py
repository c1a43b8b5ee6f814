"""The layers of a captured model that have weights: how many, and how many numbers go in and come out for one row.

What the communication of model and batch parallelism is counted from (`plait.cost.grid`), whatever the model.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from plait.graph.build import Model, module_path, parameter_name
from plait.graph.deferred import VIEWS
from plait.graph.graph import ITEM_BYTES
from plait.graph.randomness import operator_of

_KINDS = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), "convolution"),
    **dict.fromkeys(("linear", "addmm", "mm", "matmul", "bmm", "baddbmm"), "dense"),
    "embedding": "embedding",
}


@dataclass(frozen=True)
class Layer:
    """Numbers, not bytes. `inputs` and `outputs` are those of one row; `needs_input_gradient` as of all but the first.

    A layer of another kind (a normalisation, say) has its weights alone: nobody splits it.
    """

    name: str
    kind: str  # "convolution", "dense", "embedding" or "other"
    weights: int
    inputs: int
    outputs: int
    needs_input_gradient: bool


def layers_of(model: Model) -> tuple[Layer, ...]:
    """In the order of the model's code; a weight that several of them read is counted with the first."""
    return tuple(_layers(model))


def _layers(model: Model) -> Iterator[Layer]:
    trained = {p.name for p in model.graph.parameters if p.trainable}
    for node in model.captured.module.graph.nodes:
        if node.op != "call_function" or _is_view(node):
            continue
        parameters = {name for source in node.all_input_nodes if (name := _parameter(model, source)) is not None}
        own = parameters & trained
        trained -= own
        kind = _kind(node)
        if not own and not (parameters and kind != "other"):
            continue
        weights = sum(p.num_bytes // ITEM_BYTES[p.dtype] for p in model.graph.parameters if p.name in own)
        data = [source for source in node.all_input_nodes if _parameter(model, source) is None and _numbers(source)]
        inputs = max(map(_numbers, data), default=0)
        gradient = any(source in model.needs_gradient for source in data)
        yield Layer(module_path(node) or node.name, kind, weights, inputs, _numbers(node), gradient)


def _parameter(model: Model, node: fx.Node) -> str | None:
    """The parameter that a node is, or is a view of."""
    while _is_view(node):
        (node,) = node.all_input_nodes[:1]
    if node.op != "get_attr" or not node.meta.get("is_parameter"):
        return None
    return parameter_name(model.captured, node)


def _is_view(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in VIEWS


def _kind(node: fx.Node) -> str:
    function = operator_of(node)
    return _KINDS.get(function._opname, "other") if function is not None else "other"


def _numbers(node: fx.Node) -> int:
    """In what a node makes for one row."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return 0
    sizes = (
        size.node.expr.subs(dict.fromkeys(size.node.expr.free_symbols, 1)) if isinstance(size, torch.SymInt) else size
        for size in value.shape
    )
    return math.prod(map(int, sizes))
