"""Which nodes may share memory, and which in-place operations can become functional ones.

[Note: why in-place operations matter] A stage keeps its tensors apart from every other stage's. If an
operation overwrites a tensor that another stage also reads, or overwrites it through a view, the cut
changes the gradients without any error. So an in-place operation is rewritten to its functional form
where nobody else can see the difference, and otherwise everything that shares the memory is kept in one
atom (`constraints.mutation_rule`).
"""

import operator
from collections.abc import Iterator

import torch
from torch import fx
from torch._ops import OpOverload

from plait.graph.capture.opaque import opaque_call_of
from plait.graph.randomness import called, operator_of
from plait.graph.regions import operands_where

# Composite operators that hand back an input, or a view of one, though their schema does not say so.
_MAY_RETURN_AN_INPUT = {
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_tensors",
    "meshgrid",
    "sum_to_size",
    "type_as",
}


class AliasSets:
    """Union-find over nodes that may share storage."""

    def __init__(self) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}
        self._members: dict[fx.Node, list[fx.Node]] = {}

    def _root(self, node: fx.Node) -> fx.Node:
        while (parent := self._parent.setdefault(node, node)) is not node:
            node = parent
        self._members.setdefault(node, [node])
        return node

    def join(self, a: fx.Node, b: fx.Node) -> None:
        root_a, root_b = self._root(a), self._root(b)
        if root_a is not root_b:
            self._parent[root_b] = root_a
            self._members[root_a] += self._members.pop(root_b)

    def members(self, node: fx.Node) -> list[fx.Node]:
        return self._members[self._root(node)]


def aliased_inputs(node: fx.Node) -> Iterator[fx.Node]:
    """Inputs whose memory the result of `node` may share."""
    if node.op != "call_function":
        return
    if node.target is operator.getitem:
        assert isinstance(node.args[0], fx.Node)
        yield node.args[0]
    elif opaque_call_of(node) is not None:
        yield from called(node)[1][2]  # it may hand back what it was given
    elif (function := operator_of(node)) is not None:
        for argument, value in schema_arguments(node):
            if argument.alias_info is not None or _may_return_an_input(node, function):
                yield from _nodes_in(value)
    else:
        yield from operands_where(node, _leaves_its_region)


def _may_return_an_input(node: fx.Node, function: OpOverload) -> bool:
    if function._opname.endswith("dropout"):  # of nothing, or not in training: its input itself
        _, probability, train = called(node)[1]
        return not (probability and train)
    return function._opname in _MAY_RETURN_AN_INPUT


def mutated_inputs(node: fx.Node) -> Iterator[fx.Node]:
    """Inputs that `node` overwrites, BatchNorm's running statistics included."""
    if node.op != "call_function":
        return
    if (call := opaque_call_of(node)) is not None:
        yield from (n for name, n in zip(call.tensor_names, called(node)[1][1], strict=True) if name in call.written)
        return
    if operator_of(node) is None:
        yield from operands_where(node, _is_overwritten)
        return
    for argument, value in schema_arguments(node):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _nodes_in(value)
    if is_training_batch_norm(node):
        yield from (n for n in node.args[3:5] if isinstance(n, fx.Node))


def is_training_batch_norm(node: fx.Node) -> bool:
    """The composite `batch_norm` updates its statistics though its schema does not say so."""
    return node.target is torch.ops.aten.batch_norm.default and bool(node.args[5])


def _leaves_its_region(graph: fx.Graph, given: fx.Node) -> bool:
    """May an input of a region share memory with one of its outputs?"""
    (output,) = graph.find_nodes(op="output")
    members = alias_sets(graph).members(given)
    return any(node in members for node in output.all_input_nodes)


def _is_overwritten(graph: fx.Graph, given: fx.Node) -> bool:
    """Does a region overwrite this input of its?"""
    members = alias_sets(graph).members(given)
    return any(target in members for node in graph.nodes for target in mutated_inputs(node))


def schema_arguments(node: fx.Node) -> Iterator[tuple[torch._C.Argument, object]]:
    function, args = operator_of(node), called(node)[1]
    assert function is not None
    arguments = function._schema.arguments
    yield from zip(arguments, args, strict=False)
    for argument in arguments:
        if argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]


def _nodes_in(value: object) -> Iterator[fx.Node]:
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _nodes_in(item)


def alias_sets(graph: fx.Graph) -> AliasSets:
    sets = AliasSets()
    for node in graph.nodes:
        for other in aliased_inputs(node):
            sets.join(other, node)
    return sets


def make_functional(graph: fx.Graph) -> None:
    """Rewrites every in-place operation whose overwriting nobody else can see."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    sets = AliasSets()
    for node in list(graph.nodes):
        functional = _functional_form(node)
        if functional is None or _overwriting_is_seen(node, sets, position):
            for other in aliased_inputs(node):
                sets.join(other, node)
            continue
        target = node.args[0]
        assert isinstance(target, fx.Node)
        node.target = functional
        for user in list(target.users):
            if position[user] > position[node]:
                user.replace_input_with(target, node)


def _functional_form(node: fx.Node) -> OpOverload | None:
    """`aten.relu` for `aten.relu_`, where PyTorch has one of the same signature."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    if not (node.target.namespace == "aten" and node.target._opname.endswith("_")):
        return None
    packet = getattr(torch.ops.aten, node.target._opname[:-1], None)
    overload = getattr(packet, node.target._overloadname, None)
    if overload is None or node.target._opname == "copy_":
        return None
    same = len(overload._schema.arguments) == len(node.target._schema.arguments)
    result, overwritten = node.meta.get("val"), node.args[0].meta.get("val")  # type: ignore[union-attr]
    keeps_dtype = getattr(result, "dtype", None) == getattr(overwritten, "dtype", None)
    return overload if same and keeps_dtype else None


def _overwriting_is_seen(node: fx.Node, sets: AliasSets, position: dict[fx.Node, int]) -> bool:
    target = node.args[0]
    assert isinstance(target, fx.Node)
    for other in sets.members(target):
        if other.op in ("placeholder", "get_attr"):
            return True
        if other is not target and any(position[user] > position[node] for user in other.users):
            return True
    return False
