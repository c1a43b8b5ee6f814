"""Which nodes may not be parted by a cut, and why: one small rule per relation.

Each rule yields `Binding`s, sets of nodes that must stay in one atom. Together with the graph's edges
they decide every legal cut (`atoms`).

| relation                                         | rule                 |
| ------------------------------------------------ | -------------------- |
| a node makes a tuple, `getitem` picks from it    | tuple_rule           |
| memory overwritten that others can see           | mutation_rule        |
| memory read by strides                           | strides_rule         |
| buffer written in the forward                    | buffer_rule          |
| integer or shape that depends on data            | data_dependent_rule  |
| size not proportional to the rows                | proportional_rule    |
| module that cannot be captured                  | opaque_rule          |
| random number that chooses what runs            | choice_rule          |
| mean over rows, which replicas have in parts     | mixing.means_over_rows |

An autocast or no-grad region is a single node already; tied parameters and skips bind nothing: the
parameter is copied and the value is sent straight to its consumers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from plait.graph.aliases import alias_sets, mutated_inputs
from plait.graph.capture.opaque import opaque_call_of
from plait.graph.randomness import called
from plait.graph.regions import choose
from plait.graph.rows import BatchDims


@dataclass(frozen=True)
class Binding:
    rule: str
    why: str
    nodes: frozenset[fx.Node]


def bindings(graph: fx.Graph, dims: BatchDims) -> Iterator[Binding]:
    rules: tuple[Callable[[fx.Graph, BatchDims], Iterator[tuple[str, set[fx.Node]]]], ...] = (
        tuple_rule,
        mutation_rule,
        strides_rule,
        buffer_rule,
        data_dependent_rule,
        proportional_rule,
        choice_rule,
        opaque_rule,
    )
    for rule in rules:
        for why, nodes in rule(graph, dims):
            yield Binding(rule.__name__.removesuffix("_rule"), why, frozenset(nodes))


def tuple_rule(graph: fx.Graph, _: BatchDims) -> Iterator[tuple[str, set[fx.Node]]]:
    """Tuples never cross a cut: whoever picks from one stays with its maker."""
    for node in graph.nodes:
        if isinstance(node.meta.get("val"), (tuple, list)):
            yield f"{node.name} makes a tuple", {node, *node.users}


def mutation_rule(graph: fx.Graph, _: BatchDims) -> Iterator[tuple[str, set[fx.Node]]]:
    """Memory that is overwritten in place: its maker, its views, and all who use it before the last write."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    sets = alias_sets(graph)
    for node in graph.nodes:
        for target in mutated_inputs(node):
            members = sets.members(target)
            if any(member.op == "get_attr" for member in members):
                continue  # a buffer: buffer_rule
            group = {node}
            for member in members:
                if member.op == "call_function" and position[member] <= position[node]:
                    group.add(member)
                group |= {user for user in member.users if position[user] < position[node]}
            yield f"{node.name} overwrites memory that {target.name} shares", group


def strides_rule(graph: fx.Graph, _: BatchDims) -> Iterator[tuple[str, set[fx.Node]]]:
    """A tensor arrives contiguous on the far side of a cut, whatever it was: who looks at its memory stays."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    sets = alias_sets(graph)
    for node in graph.nodes:
        if node.target is torch.ops.aten.as_strided.default:
            shared = {m for m in sets.members(node) if m.op == "call_function" and position[m] <= position[node]}
            yield f"{node.name} depends on the strides of its input", shared


def buffer_rule(graph: fx.Graph, _: BatchDims) -> Iterator[tuple[str, set[fx.Node]]]:
    """A buffer written in the forward (BatchNorm statistics): writer and readers in one stage."""
    sets = alias_sets(graph)
    written = {
        member
        for node in graph.nodes
        for target in mutated_inputs(node)
        for member in sets.members(target)
        if member.op == "get_attr"
    }
    for buffer in sorted(written, key=lambda node: node.name):
        users = {user for member in sets.members(buffer) for user in member.users}
        yield f"buffer {str(buffer.target).removeprefix('model.')} is written", users


def data_dependent_rule(graph: fx.Graph, dims: BatchDims) -> Iterator[tuple[str, set[fx.Node]]]:
    """A number read from data, or a shape that depends on it, cannot be known on the far side of a cut."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op != "call_function":
            continue
        is_number = isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat, int, bool, float))
        if (is_number and not dims.is_row_arithmetic(node)) or dims.has_unknown_size(node):
            yield f"{node.name} has a size or value only known while running", {node, *_real(node.users)}


def proportional_rule(graph: fx.Graph, dims: BatchDims) -> Iterator[tuple[str, set[fx.Node]]]:
    """Only tensors whose size is proportional to the rows can be sent; others stay with their users."""
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor) and dims.is_irregular(node):
            yield f"{node.name} is not proportional to the batch", {node, *_real(node.users)}


def choice_rule(graph: fx.Graph, _: BatchDims) -> Iterator[tuple[str, set[fx.Node]]]:
    """Every replica of a stage draws for itself whether to skip, so nobody else may be told what was drawn."""
    for node in graph.nodes:
        target, args = called(node)
        if target is choose:
            asked: set[fx.Node] = set()
            pending = [args[0]]
            while pending:
                source = pending.pop()
                if source.op == "call_function" and source not in asked:
                    asked.add(source)
                    pending += source.all_input_nodes
            yield f"a random number chooses whether {node.name} runs", {node, *asked}


def opaque_rule(graph: fx.Graph, _: BatchDims) -> Iterator[tuple[str, set[fx.Node]]]:
    """A module the capture cannot look into is one node."""
    for node in graph.nodes:
        if (call := opaque_call_of(node)) is not None:
            yield f"{node.name} runs a module in one piece: {call.why}", {node, *_real(node.users)}


def _real(nodes: object) -> set[fx.Node]:
    return {node for node in nodes if node.op == "call_function"}  # type: ignore[attr-defined]
