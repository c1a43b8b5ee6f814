"""Running a captured graph node by node, each with its own backward, to see what every node costs."""

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from plait.cost.stand_ins import runnable
from plait.cost.tensors import same_memory, tensors_in
from plait.graph import Model
from plait.graph.aliases import alias_sets, mutated_inputs
from plait.graph.build import parameter_name
from plait.graph.deferred import deferrable
from plait.graph.devices import move_arguments, move_graph
from plait.graph.randomness import Randomness


@dataclass(frozen=True)
class NodeRun:
    """One node ready to be run, as often as wanted: `forward()` gives outputs, `backward(outputs)` runs them back.

    `weight_backward(outputs)` is the part of the backward that can be put off, where there is one: all of it if
    `weights_alone` have gradients.
    Nodes with an equal `alike` cost the same and save the same of what they are `given`: all tensors they read.
    Who knows the outputs without running it hands them to `keep`, for the nodes that read them.
    """

    node: fx.Node
    alike: Hashable
    forward: Callable[[], Any]
    backward: Callable[[Any], None]
    weight_backward: Callable[[Any], None] | None
    weights_alone: bool
    keep: Callable[[Any], Any]
    inputs: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...]
    given: tuple[Tensor, ...]

    def there_and_back(self) -> None:
        self.backward(self.forward())

    def there_and_to_weights(self) -> None:
        assert self.weight_backward is not None
        self.weight_backward(self.forward())


def batch_inputs(model: Model, batch: Any, rows: int, device: torch.device | str) -> dict[str, Tensor]:
    """The first `rows` rows of the batch (repeated where it has fewer), by input name."""
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    captured = model.captured
    taken = {}
    for name, batched, leaf in zip(captured.input_names, captured.input_batched, leaves, strict=True):
        if batched:
            leaf = (
                leaf[torch.arange(rows) % leaf.shape[0]]
                if leaf.device.type != "meta"
                else leaf.new_empty(rows, *leaf.shape[1:])
            )
        taken[name] = leaf.to(device)
    return taken


def walk(model: Model, inputs: Mapping[str, Tensor], rows: int, device: torch.device | str) -> Iterator[NodeRun]:
    """Yields the nodes in order. The consumer runs `forward`; the walk keeps its first result for later nodes."""
    graph = model.captured.module.graph
    overwritten = _overwritten(graph)
    last_use = {source: node for node in graph.nodes for source in node.all_input_nodes}
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = inputs.get(node.name, rows)
        elif node.op == "get_attr":
            values[node] = attribute(model, node, device)
        elif node.op == "call_function":
            kept: list[Any] = []
            yield _prepare(model, node, values, device, kept, differentiable=node not in overwritten)
            values[node] = kept[0]
        for source in node.all_input_nodes:
            if last_use[source] is node and source.op == "call_function":
                values.pop(source, None)


def comes_in_time(model: Model, source: fx.Node) -> bool:
    """Is this a parameter whose gradient may come after those of activations?"""
    name = parameter_name(model.captured, source)
    return any(p.name == name and p.trainable and not p.may_be_skipped for p in model.graph.parameters)


def _overwritten(graph: fx.Graph) -> set[fx.Node]:
    """Nodes on memory that is written in place: autograd would refuse them one at a time."""
    sets = alias_sets(graph)
    return {
        member
        for node in graph.nodes
        for target in mutated_inputs(node)
        if target.op != "get_attr"
        for member in [node, *sets.members(target)]
    }


def attribute(model: Model, node: fx.Node, device: torch.device | str) -> Any:
    if node.target == "randomness":
        return Randomness()
    holder: Any = model.captured.module
    for part in str(node.target).split("."):
        holder = getattr(holder, part)
    if isinstance(holder, fx.GraphModule):
        region = copy.deepcopy(holder)
        move_graph(region.graph, torch.device(device))
        region.recompile()
        return region
    if not isinstance(holder, Tensor):
        return holder
    if torch.device(device).type == "meta" or holder.device.type == "meta":
        return torch.empty_like(holder, device=device)
    # A copy for buffers: measuring BatchNorm must not move the model's statistics.
    return holder.detach().to(device) if isinstance(holder, nn.Parameter) else holder.detach().clone().to(device)


def _prepare(
    model: Model,
    node: fx.Node,
    values: Mapping[fx.Node, Any],
    device: torch.device | str,
    kept: list[Any],
    *,
    differentiable: bool,
) -> NodeRun:
    leaves: dict[fx.Node, Tensor] = {}
    found = deferrable(node, lambda source: comes_in_time(model, source)) if differentiable else None
    weights = found.weights if found is not None else ()

    def take(source: fx.Node) -> Any:
        value = values[source]
        if not isinstance(value, Tensor):
            return value
        value = value.detach()
        if differentiable and source in model.needs_gradient and value.is_floating_point():
            value = leaves.setdefault(source, value.requires_grad_())
        return value

    args = move_arguments(fx.map_arg(node.args, take), torch.device(device))
    kwargs = dict(move_arguments(fx.map_arg(node.kwargs, take), torch.device(device)))
    target, args = runnable(node.target, args, device)

    def keep(result: Any) -> Any:
        if not kept:
            kept.append(pytree.tree_map_only(Tensor, Tensor.detach, result))
        return result

    def backward_to(targets: Sequence[Tensor], outputs: Any) -> None:
        tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
        if tensors and targets:
            torch.autograd.grad(tensors, targets, [torch.ones_like(t) for t in tensors], allow_unused=True)

    own = [leaf for source, leaf in leaves.items() if source in weights]
    sources = [n for n in node.all_input_nodes if isinstance(values[n], Tensor)]
    given = tuple(tensors_in([values[n] for n in node.all_input_nodes]))
    return NodeRun(
        node=node,
        alike=(model.alike[node], differentiable, same_memory(given), bool(own)),
        forward=lambda: keep(target(*args, **kwargs)),
        backward=partial(backward_to, list(leaves.values())),
        weight_backward=partial(backward_to, own) if own else None,
        weights_alone=len(own) == len(leaves),
        keep=keep,
        inputs=tuple(values[n] for n in sources if n.op != "get_attr"),
        parameters=tuple(values[n] for n in sources if n.op == "get_attr"),
        given=given,
    )
