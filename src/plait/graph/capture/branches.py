"""From several paths through a model to one graph in which a random number chooses what runs.

The first path takes every question's usual answer (and is the longest: LayerDrop's layers all run). In a second one
every other answer is turned, in a third the rest. A path is the first one, except that after a turned answer some
nodes (the *body*) are others, usually none, and that later nodes read other values in place of what the body made.
Laying the paths side by side gives both, and the body becomes one node:

    choose(condition, if_true, if_false, *operands)

No two turned answers are neighbours, so whoever reads a body's result, in the next body or after it, is there to be
looked at; a last path with every answer turned checks the result. Whatever does not fit raises `DoesNotFit`.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx, nn

from plait.graph.capture.decisions import MARK, marks
from plait.graph.regions import choose


class DoesNotFit(Exception):
    """The paths differ in more than the bodies of their branches."""


@dataclass(frozen=True)
class Body:
    """What runs after the usual answer, what after the other one, and what then stands for the first's results."""

    usual: list[fx.Node]
    other: list[fx.Node]
    instead: Mapping[fx.Node, fx.Node]  # a usual result -> a node of the other path


class SideBySide:
    """Another path laid beside the first: `same` says which of its nodes is which of the first's."""

    def __init__(self, first: fx.GraphModule, other: fx.GraphModule, turned: Iterable[int]) -> None:
        self.first, self.other = first, other
        self.turned = set(turned)
        self.same: dict[fx.Node, fx.Node] = {}
        self.bodies: dict[int, Body] = {}
        self._body_of: dict[fx.Node, dict[fx.Node, fx.Node]] = {}
        self._lay()

    def _lay(self) -> None:
        first, other = _segments(self.first.graph), _segments(self.other.graph)
        if len(first) != len(other):
            raise DoesNotFit("one branch decides whether another is reached")
        pairs: list[tuple[fx.Node, fx.Node]] = []
        for number, (a, b) in enumerate(zip(first, other, strict=True)):
            tail = len(a)
            if number - 1 in self.turned:
                both_backwards = zip(reversed(a), reversed(b), strict=False)
                tail = len(list(takewhile(lambda pair: _alike(*pair), both_backwards)))
                instead: dict[fx.Node, fx.Node] = {}
                usual = a[: len(a) - tail]
                self.bodies[number - 1] = Body(usual, b[: len(b) - tail], instead)
                self._body_of |= dict.fromkeys(usual, instead)
            elif len(a) != len(b) or not all(map(_alike, a, b)):
                raise DoesNotFit("a branch changes what runs after it")
            pairs += zip(a[len(a) - tail :], b[len(b) - tail :], strict=True)
        self.same |= {others: mine for mine, others in pairs}
        for mine, others in pairs:
            self._compare_inputs(mine, others)

    def _compare_inputs(self, a: fx.Node, b: fx.Node) -> None:
        for mine, others in zip(a.all_input_nodes, b.all_input_nodes, strict=True):
            if self._are_same(mine, others):
                continue
            instead = self._body_of.get(mine)
            if instead is None or instead.setdefault(mine, others) is not others:
                raise DoesNotFit(f"{a.name} reads {others.name} on one path and {mine.name} on another")

    def _are_same(self, mine: fx.Node, others: fx.Node) -> bool:
        if mine.op == others.op == "get_attr":  # of several equal constants any one will do
            return self._is_source(mine, others)
        return self.counterpart(others) is mine

    def counterpart(self, node: fx.Node) -> fx.Node | None:
        """The node of the first path that `node` of the other is; inputs and weights are found by name."""
        if node not in self.same and node.op in ("placeholder", "get_attr"):
            found = next((n for n in self.first.graph.find_nodes(op=node.op) if self._is_source(n, node)), None)
            if found is not None:
                self.same[node] = found
        return self.same.get(node)

    def _is_source(self, a: fx.Node, b: fx.Node) -> bool:
        if a.op == "placeholder" or "lifted_tensor" not in str(b.target):
            return a.target == b.target
        mine, others = attribute(self.first, a), attribute(self.other, b)  # constants are numbered per path
        return mine.shape == others.shape and mine.dtype == others.dtype and torch.equal(mine, others)


def _segments(graph: fx.Graph) -> list[list[fx.Node]]:
    """The nodes between one question and the next."""
    found: list[list[fx.Node]] = [[]]
    for node in graph.nodes:
        if node.op in ("call_function", "output"):
            found[-1].append(node)
        if node.op == "call_function" and node.target is MARK:
            found.append([])
    return found


def _alike(a: fx.Node, b: fx.Node) -> bool:
    """Is this the same operation, whatever it reads?"""
    return a.target == b.target and _constants(a) == _constants(b)


def _constants(node: fx.Node) -> tuple[Any, Any]:
    if node.target is MARK:
        return (), None
    leaves, spec = pytree.tree_flatten((node.args, dict(node.kwargs)))
    return tuple(None if isinstance(leaf, fx.Node) else leaf for leaf in leaves), spec


def attribute(module: nn.Module, node: fx.Node) -> Any:
    holder: Any = module
    for part in str(node.target).split("."):
        holder = getattr(holder, part)
    return holder


def join(first: fx.GraphModule, paths: Sequence[SideBySide], usual: Set[int]) -> None:
    """Makes the body after every question a choice, in place; `usual` are the questions `first` answered with yes."""
    for module in {first, *(path.other for path in paths)}:
        module.graph.eliminate_dead_code()
    bodies = {number: (_alive(body), path) for path in paths for number, body in path.bodies.items()}
    written: dict[fx.Node, fx.Node] = {}
    questions = marks(first.graph)
    for number, mark in enumerate(questions):
        if number in bodies:
            body, path = bodies[number]
            _Choice(first, path, body, written).write(number, mark, answer=number in usual)
    for mark in questions:
        first.graph.erase_node(mark)
    first.recompile()


def _alive(body: Body) -> Body:
    """Without nodes that no result depends on."""
    return Body([n for n in body.usual if not n._erased], [n for n in body.other if not n._erased], body.instead)


def check_all_turned(path: SideBySide, paths: Sequence[SideBySide]) -> None:
    """Several turned answers at once must do what each of them was seen to do alone."""
    instead = {
        result: other.counterpart(replacement)
        for other in paths
        for body in other.bodies.values()
        for result, replacement in body.instead.items()
    }
    for body in path.bodies.values():
        for result, replacement in body.instead.items():
            expected: fx.Node | None = result
            while expected in instead:
                expected = instead[expected]
            if expected is not None and path.counterpart(replacement) is not expected:
                raise DoesNotFit("two branches together do something else than each alone")


class _Choice:
    """One body on its way to becoming a node. `written` has what earlier choices' results are read from now."""

    def __init__(self, first: fx.GraphModule, path: SideBySide, body: Body, written: dict[fx.Node, fx.Node]) -> None:
        self.first, self.path, self.body, self.written = first, path, body, written
        inside = set(body.usual)
        self.results = [node for node in body.usual if any(user not in inside for user in node.users)]

    def write(self, number: int, mark: fx.Node, *, answer: bool) -> None:
        if not self.results:
            return  # both answers come to the same
        for node in self.results:
            if node not in self.body.instead:
                raise DoesNotFit(f"nothing stands for {node.name} where its branch is not taken")
        replacements = [self.body.instead[node] for node in self.results]
        operands = self._operands(replacements)
        if any(node > self.body.usual[-1] for node in operands):
            raise DoesNotFit("a branch is replaced by something computed after it")
        usual = _region(self.first, self.body.usual, self.results, operands, lambda node: node)
        other = _region(self.path.other, self.body.other, replacements, operands, self._in_first)
        self._insert(mark, {answer: usual, not answer: other}, f"choice_{number}", operands)

    def _in_first(self, node: fx.Node) -> fx.Node:
        """The node of the first path, as it now is, that stands for one of the other path."""
        found = self.path.counterpart(node)
        if found is None:
            raise DoesNotFit(f"{node.name} exists on one path alone")
        return self.written.get(found, found)

    def _operands(self, replacements: Iterable[fx.Node]) -> list[fx.Node]:
        """What the two regions read from outside."""
        inside, beside = set(self.body.usual), set(self.body.other)
        mine = [n for node in self.body.usual for n in node.all_input_nodes if n not in inside]
        others = [n for node in self.body.other for n in node.all_input_nodes] + list(replacements)
        found = dict.fromkeys([*mine, *(self._in_first(n) for n in others if n not in beside)])
        return [node for node in found if not _is_region(self.first, node)]

    def _insert(
        self, mark: fx.Node, regions: Mapping[bool, fx.GraphModule], name: str, operands: Sequence[fx.Node]
    ) -> None:
        graph = self.first.graph
        with graph.inserting_after(self.body.usual[-1]):
            choice = graph.call_function(choose)
        with graph.inserting_before(choice):
            held = []
            for answer in (True, False):
                path = f"{name}_{'yes' if answer else 'no'}"
                self.first.add_submodule(path, regions[answer])
                held.append(graph.get_attr(path))
        choice.args = (mark.args[0], *held, *operands)
        choice.meta = {**self.results[0].meta, "nn_module_stack": _common_stack(self.body.usual)}
        choice.meta["val"] = tuple(node.meta["val"] for node in self.results)
        after = choice
        for index, node in enumerate(self.results):
            with graph.inserting_after(after):
                after = picked = graph.call_function(operator.getitem, (choice, index))
            picked.meta = dict(node.meta)
            node.replace_all_uses_with(picked, delete_user_cb=lambda user: user not in self.body.usual)
            self.written[node] = picked
        for node in reversed(self.body.usual):
            graph.erase_node(node)


def _region(
    module: fx.GraphModule,
    nodes: Sequence[fx.Node],
    results: Sequence[fx.Node],
    operands: Sequence[fx.Node],
    in_first: Callable[[fx.Node], fx.Node],
) -> fx.GraphModule:
    """`nodes` as a module from the operands to the results."""
    graph = fx.Graph()
    inputs: dict[fx.Node, fx.Node] = {}
    for operand in operands:
        inputs[operand] = graph.placeholder(operand.name)
        inputs[operand].meta = dict(operand.meta)
    copies: dict[fx.Node, fx.Node] = {}
    attributes: dict[str, Any] = {}

    def read(node: fx.Node) -> fx.Node:
        if node not in copies and _is_region(module, node):
            attributes[str(node.target)] = attribute(module, node)
            copies[node] = graph.get_attr(str(node.target))
        return copies[node] if node in copies else inputs[in_first(node)]

    for node in nodes:
        copies[node] = graph.node_copy(node, read)
    outputs = []
    for node in results:
        found = read(node)
        if node not in nodes:  # a tensor of its own, so that a stage may hand it on
            found = graph.call_function(torch.ops.aten.alias.default, (found,))
            found.meta = dict(node.meta)
        outputs.append(found)
    graph.output(tuple(outputs))
    return fx.GraphModule(attributes, graph)


def _is_region(module: nn.Module, node: fx.Node) -> bool:
    return node.op == "get_attr" and isinstance(attribute(module, node), fx.GraphModule)


def _common_stack(nodes: Sequence[fx.Node]) -> dict[str, Any]:
    """The innermost module all of them belong to, with those around it."""
    stacks = [node.meta.get("nn_module_stack", {}) for node in nodes]
    return {key: value for key, value in stacks[0].items() if all(key in stack for stack in stacks)}
