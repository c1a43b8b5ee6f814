"""`build_graph`: from a model to its `Graph` and the captured code the graph describes."""

import operator
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator

from plait.graph.aliases import alias_sets, mutated_inputs
from plait.graph.alike import alike_nodes
from plait.graph.atoms import NodeGroup, atoms_of, free_nodes
from plait.graph.capture import Captured, Loss, capture
from plait.graph.capture.opaque import call_opaque
from plait.graph.capture.sizes import row_symbols
from plait.graph.constraints import Binding, bindings
from plait.graph.graph import Atom, Graph, Parameter, RowMixer, Value
from plait.graph.layouts import memory_order
from plait.graph.mixing import means_over_rows, mixing_nodes
from plait.graph.normalise import normalise
from plait.graph.randomness import called, operator_of
from plait.graph.regions import choose
from plait.graph.reorder import cheapest_chain, reordered
from plait.graph.rows import BatchDims


@dataclass(frozen=True)
class Model:
    """A graph together with the code that runs it."""

    graph: Graph
    captured: Captured
    atom_nodes: tuple[tuple[fx.Node, ...], ...]
    free: frozenset[fx.Node]
    needs_gradient: frozenset[fx.Node]
    unused: tuple[str, ...]  # parameters and buffers the loss does not depend on
    bindings: tuple[Binding, ...] = ()  # all that the rules found, in no relation to the atoms' order

    @cached_property
    def node_by_name(self) -> dict[str, fx.Node]:
        return {node.name: node for node in self.captured.module.graph.nodes}

    @cached_property
    def atom_of(self) -> dict[fx.Node, int]:
        return {node: index for index, nodes in enumerate(self.atom_nodes) for node in nodes}

    @cached_property
    def bindings_of(self) -> dict[fx.Node, list[Binding]]:
        found: dict[fx.Node, list[Binding]] = {}
        for binding in self.bindings:
            for node in binding.nodes:
                found.setdefault(node, []).append(binding)
        return found

    @cached_property
    def alike(self) -> dict[fx.Node, int]:
        """Per node a number; those with the same one cost the same (`plait.graph.alike`)."""
        return alike_nodes(self.captured.module, self.needs_gradient)

    @cached_property
    def free_writers(self) -> dict[fx.Node, list[fx.Node]]:
        """Per free node, the free nodes that write into memory it shares: they go where it goes."""
        return _writers(_written(self.captured.module.graph), self.free)


def build_graph(
    model: nn.Module, batch: Any, *, loss: Loss | None = None, name: str = "model", search_order: bool = True
) -> Model:
    """Captures `model`, finds its atoms and describes what flows between them.

    Without `search_order` the atoms stay in the order in which the model's code ran them. The batch may lie on another
    device than the model.
    """
    captured = capture(model, _beside(model, batch), loss=loss)
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    tensors.update(model.named_buffers())
    symbols = row_symbols(captured.module.graph)
    normalise(captured)
    graph = captured.module.graph
    for node in graph.nodes:
        if node.op == "get_attr":
            node.meta["is_parameter"] = isinstance(_tensor(captured, tensors, node), nn.Parameter)
    dims = BatchDims(symbols)
    bound = list(bindings(graph, dims))
    free = free_nodes(graph, bound)
    for node in means_over_rows(graph, dims, free):
        why = f"{node.name} is a mean over rows, of which every replica has its own part"
        bound.append(Binding("mean", why, frozenset({node, *_real_users(node)})))
    groups = atoms_of(graph, bound, free)
    atom_of = {node: index for index, group in enumerate(groups) for node in group.nodes}
    written = _written(graph)
    needs_gradient = _gradients(graph, captured, tensors, written)
    mixers = [
        RowMixer(atom, node.name, module_path(node), why, remedy)
        for node, why, remedy in mixing_nodes(graph, dims, free)
        for atom in _atoms_computing(node, atom_of, written)
    ]
    reaching = _reaching_the_loss(graph, needs_gradient, written)
    trained = {parameter_name(captured, node) for node in reaching if node.op == "get_attr"}
    parameters = _parameters(groups, captured, tensors, trained, free, _writers(written, free))
    used = {parameter.name for parameter in parameters}
    chain = Graph(
        name=name,
        atoms=tuple(_atom(group) for group in groups),
        values=tuple(_values(groups, atom_of, dims, reaching)),
        parameters=parameters,
        row_mixers=tuple(mixers),
    )
    order = cheapest_chain(chain) if search_order else range(len(groups))
    return Model(
        graph=reordered(chain, order),
        captured=captured,
        atom_nodes=tuple(groups[atom].nodes for atom in order),
        free=frozenset(free),
        needs_gradient=frozenset(needs_gradient),
        unused=tuple(n for n in tensors if n not in used),
        bindings=tuple(bound),
    )


def module_path(node: fx.Node) -> str:
    """The innermost module of the user's model that this node belongs to."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    names = [path for path, _ in stack if not path.startswith("_empty")]
    return (names[-1] if names else "").removeprefix("model").lstrip(".")


def _atom(group: NodeGroup) -> Atom:
    first = next((node for node in group.nodes if called(node)[0] is choose), group.nodes[0])
    module = module_path(first)
    name = f"{module}.{first.name}" if module else first.name
    binds = tuple(f"{b.rule}: {b.why}" for b in group.bindings)
    modules = tuple(module_path(node) for node in group.nodes)
    return Atom(name, module, tuple(node.name for node in group.nodes), binds, modules)


def _beside(model: nn.Module, batch: Any) -> Any:
    """The batch on the device of the model's tensors, where they have one and it holds numbers."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) != 1 or torch.device("meta") in devices:
        return batch
    (device,) = devices
    return pytree.tree_map_only(Tensor, lambda leaf: leaf if leaf.is_meta else leaf.to(device), batch)


def _tensor(captured: Captured, tensors: Mapping[str, Tensor], node: fx.Node) -> Tensor | None:
    return tensors.get(captured.parameter_names.get(str(node.target), ""))


def parameter_name(captured: Captured, node: fx.Node) -> str:
    """The name a parameter, buffer or captured constant goes by."""
    return captured.parameter_names.get(str(node.target), str(node.target))


def _gradients(
    graph: fx.Graph, captured: Captured, tensors: Mapping[str, Tensor], written: Mapping[fx.Node, Set[fx.Node]]
) -> set[fx.Node]:
    """Nodes through which a gradient flows: a floating tensor computed from a trainable parameter.

    Where such a node writes into memory that others share, the gradient flows through all of them.
    """
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            tensor = _tensor(captured, tensors, node)
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                found.add(node)
        elif node.op == "call_function" and _carries_gradient(node) and any(n in found for n in _made_from(node)):
            found.add(node)
            found.update(n for n in written.get(node, ()) if _is_float(n))
    return found


def _made_from(node: fx.Node) -> list[fx.Node]:
    """The inputs of a node; of tensors that were only broadcast together, its own one."""
    if node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, fx.Node) and isinstance(index, int)
        if source.target is torch.ops.aten.broadcast_tensors.default:
            return [source.args[0][index]]  # type: ignore[index, list-item]
    return node.all_input_nodes


def _written(graph: fx.Graph) -> dict[fx.Node, set[fx.Node]]:
    """Per node that overwrites memory, all nodes that share it; not buffers, which no gradient reaches."""
    sets = alias_sets(graph)
    found: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        for target in mutated_inputs(node):
            members = sets.members(target)
            if not any(member.op == "get_attr" for member in members):
                found.setdefault(node, set()).update(members)
    return found


def _writers(written: Mapping[fx.Node, Set[fx.Node]], among: Set[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """The other way round: per node, those of `among` that write into memory it shares."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for writer, shared in written.items():
        for node in shared if writer in among else ():
            found.setdefault(node, []).append(writer)
    return found


def _reaching_the_loss(
    graph: fx.Graph, needs_gradient: Set[fx.Node], written: Mapping[fx.Node, Set[fx.Node]]
) -> set[fx.Node]:
    """Nodes whose gradient is not just zero: PyTorch leaves `.grad` None elsewhere, and optimisers skip those."""
    (output,) = graph.find_nodes(op="output")
    writers = _writers(written, needs_gradient)
    reached: set[fx.Node] = set()
    pending = list(output.all_input_nodes)
    while pending:
        node = pending.pop()
        if node in needs_gradient and node not in reached:
            reached.add(node)
            pending += writers.get(node, ())
            if _carries_gradient(node):  # not through `zeros_like`, into whose memory something else was written
                pending += node.all_input_nodes
    return reached


def _carries_gradient(node: fx.Node) -> bool:
    function = operator_of(node)
    if function is not None and (
        function._opname == "detach" or function._opname.startswith("new_") or function._opname.endswith("_like")
    ):
        return False
    target, args = called(node)
    if isinstance(target, HigherOrderOperator) and target.name() == "wrap_with_set_grad_enabled":
        return bool(args[0])
    return _is_float(node)


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return any(isinstance(v, Tensor) and (v.dtype.is_floating_point or v.dtype.is_complex) for v in values)


def _values(
    groups: Iterable[NodeGroup], atom_of: Mapping[fx.Node, int], dims: BatchDims, reaching: Set[fx.Node]
) -> Iterable[Value]:
    """What passes between atoms. No gradient is sent back that is zero: autograd would not have computed it either."""
    for index, group in enumerate(groups):
        for node in group.nodes:
            consumers = sorted({atom_of[user] for user in _real_users(node)} - {index})
            if consumers and isinstance(node.meta.get("val"), Tensor):
                shape, batch_dim = dims.layout(node)
                dtype = str(node.meta["val"].dtype).removeprefix("torch.")
                yield Value(
                    name=node.name,
                    producer=index,
                    consumers=tuple(consumers),
                    shape=shape,
                    dtype=dtype,
                    batch_dim=batch_dim,
                    requires_grad=node in reaching,
                    order=memory_order(node.meta["val"]),
                )


def _atoms_computing(
    node: fx.Node, atom_of: Mapping[fx.Node, int], written: Mapping[fx.Node, Set[fx.Node]]
) -> list[int]:
    """The atom of a node; of a free one, those that compute it for themselves because they need it."""
    found: set[int] = set()
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        user = pending.pop()
        if user in atom_of:
            found.add(atom_of[user])
        elif user not in seen:
            seen.add(user)
            pending += [*_real_users(user), *written.get(user, ())]
    return sorted(found)


def _real_users(node: fx.Node) -> Iterable[fx.Node]:
    return (user for user in node.users if user.op == "call_function")


def _sources(node: fx.Node, free: Set[fx.Node], writers: Mapping[fx.Node, list[fx.Node]]) -> set[fx.Node]:
    """What a node reads, also through free nodes, which are computed where they are used."""
    found: set[fx.Node] = set()
    pending = list(node.all_input_nodes)
    while pending:
        source = pending.pop()
        if source not in found:
            found.add(source)
            if source in free:
                pending += [*source.all_input_nodes, *writers.get(source, ())]
    return found


def _parameters(
    groups: list[NodeGroup],
    captured: Captured,
    tensors: Mapping[str, Tensor],
    trained: Set[str],
    free: Set[fx.Node],
    writers: Mapping[fx.Node, list[fx.Node]],
) -> tuple[Parameter, ...]:
    readers: dict[str, set[int]] = {}
    always: set[str] = set()
    for index, group in enumerate(groups):
        for node in group.nodes:
            skips = called(node)[0] in (choose, call_opaque)
            for source in _sources(node, free, writers):
                if source.op == "get_attr" and _tensor(captured, tensors, source) is not None:
                    name = parameter_name(captured, source)
                    readers.setdefault(name, set()).add(index)
                    if not skips:
                        always.add(name)
    return tuple(
        Parameter(
            name=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            atoms=tuple(sorted(readers[name])),
            trainable=name in trained,
            is_buffer=not isinstance(tensor, nn.Parameter),
            may_be_skipped=name not in always,
        )
        for name, tensor in tensors.items()
        if name in readers
    )
