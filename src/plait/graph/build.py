"""`build_graph`: from a model to its `Graph` and the captured code the graph describes."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator

from plait.graph.atoms import NodeGroup, atoms_of, free_nodes
from plait.graph.capture import Captured, Loss, capture
from plait.graph.constraints import bindings
from plait.graph.graph import Atom, Graph, Parameter, RowMixer, Value
from plait.graph.normalise import normalise, row_symbols
from plait.graph.rows import BatchDims, mixing_nodes, operator_of

_NO_GRADIENT = {
    "detach",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
}


@dataclass(frozen=True)
class Model:
    """A graph together with the code that runs it."""

    graph: Graph
    captured: Captured
    atom_nodes: tuple[tuple[fx.Node, ...], ...]
    free: frozenset[fx.Node]
    needs_gradient: frozenset[fx.Node]
    unused: tuple[str, ...]  # parameters and buffers the loss does not depend on

    @cached_property
    def node_by_name(self) -> dict[str, fx.Node]:
        return {node.name: node for node in self.captured.module.graph.nodes}


def build_graph(model: nn.Module, batch: Any, *, loss: Loss | None = None, name: str = "model") -> Model:
    """Captures `model`, finds its atoms and describes what flows between them."""
    captured = capture(model, batch, loss=loss)
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    tensors.update(model.named_buffers())
    symbols = row_symbols(captured)
    normalise(captured)
    graph = captured.module.graph
    for node in graph.nodes:
        if node.op == "get_attr":
            node.meta["is_parameter"] = isinstance(_tensor(captured, tensors, node), nn.Parameter)
    dims = BatchDims(symbols)
    bound = list(bindings(graph, dims))
    free = free_nodes(graph, bound)
    groups = atoms_of(graph, bound, free)
    atom_of = {node: index for index, group in enumerate(groups) for node in group.nodes}
    needs_gradient = _gradients(graph, captured, tensors)
    mixers = [
        RowMixer(atom_of[node], node.name, module_path(node), why, remedy)
        for node, why, remedy in mixing_nodes(graph, dims, free)
        if node in atom_of
    ]
    parameters = _parameters(groups, captured, tensors, free)
    used = {parameter.name for parameter in parameters}
    return Model(
        graph=Graph(
            name=name,
            atoms=tuple(_atom(group) for group in groups),
            values=tuple(_values(groups, atom_of, dims, needs_gradient)),
            parameters=parameters,
            row_mixers=tuple(mixers),
        ),
        captured=captured,
        atom_nodes=tuple(group.nodes for group in groups),
        free=frozenset(free),
        needs_gradient=frozenset(needs_gradient),
        unused=tuple(n for n in tensors if n not in used),
    )


def module_path(node: fx.Node) -> str:
    """The innermost module of the user's model that this node belongs to."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    names = [path for path, _ in stack if not path.startswith("_empty")]
    return (names[-1] if names else "").removeprefix("model").lstrip(".")


def _atom(group: NodeGroup) -> Atom:
    first = group.nodes[0]
    module = module_path(first)
    name = f"{module}.{first.name}" if module else first.name
    binds = tuple(f"{b.rule}: {b.why}" for b in group.bindings)
    return Atom(name, module, tuple(node.name for node in group.nodes), binds)


def _tensor(captured: Captured, tensors: Mapping[str, Tensor], node: fx.Node) -> Tensor | None:
    return tensors.get(captured.parameter_names.get(str(node.target), ""))


def parameter_name(captured: Captured, node: fx.Node) -> str:
    """The name a parameter, buffer or captured constant goes by."""
    return captured.parameter_names.get(str(node.target), str(node.target))


def _gradients(graph: fx.Graph, captured: Captured, tensors: Mapping[str, Tensor]) -> set[fx.Node]:
    """Nodes through which a gradient flows: a floating tensor computed from a trainable parameter."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            tensor = _tensor(captured, tensors, node)
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                found.add(node)
        elif node.op == "call_function" and any(n in found for n in node.all_input_nodes):
            if _carries_gradient(node):
                found.add(node)
    return found


def _carries_gradient(node: fx.Node) -> bool:
    function = operator_of(node)
    if function is not None and function._opname in _NO_GRADIENT:
        return False
    if isinstance(node.target, HigherOrderOperator) and node.target.name() == "wrap_with_set_grad_enabled":
        return bool(node.args[0])
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return any(isinstance(v, Tensor) and (v.dtype.is_floating_point or v.dtype.is_complex) for v in values)


def _values(
    groups: Iterable[NodeGroup], atom_of: Mapping[fx.Node, int], dims: BatchDims, needs_gradient: Set[fx.Node]
) -> Iterable[Value]:
    for index, group in enumerate(groups):
        for node in group.nodes:
            consumers = sorted({atom_of[user] for user in _real_users(node)} - {index})
            if consumers and isinstance(node.meta.get("val"), Tensor):
                shape, batch_dim = dims.layout(node)
                dtype = str(node.meta["val"].dtype).removeprefix("torch.")
                yield Value(
                    node.name, index, tuple(consumers), shape, dtype, batch_dim, node in needs_gradient
                )


def _real_users(node: fx.Node) -> Iterable[fx.Node]:
    return (user for user in node.users if user.op == "call_function")


def _parameters(
    groups: list[NodeGroup], captured: Captured, tensors: Mapping[str, Tensor], free: Set[fx.Node]
) -> tuple[Parameter, ...]:
    readers: dict[str, set[int]] = {}
    for index, group in enumerate(groups):
        for node in group.nodes:
            for source in node.all_input_nodes:
                if source.op == "get_attr" and _tensor(captured, tensors, source) is not None:
                    readers.setdefault(parameter_name(captured, source), set()).add(index)
    return tuple(
        Parameter(
            name=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            atoms=tuple(sorted(readers[name])),
            trainable=isinstance(tensor, nn.Parameter) and tensor.requires_grad,
            is_buffer=not isinstance(tensor, nn.Parameter),
        )
        for name, tensor in tensors.items()
        if name in readers
    )
