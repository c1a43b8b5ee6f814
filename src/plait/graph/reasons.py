"""Why two nodes may not be parted by a cut, told from the rules that bind them.

Stages run one after another, so a value made in a stage can only be used in the same or a later one:
"u no later than v" holds wherever v is computed from u, and both ways between nodes that a rule binds. Two nodes are
in one atom exactly when each is no later than the other, so the reason is a chain of such steps there and back. The
plain cases are one rule that binds both, and a node that lies between two that a rule binds.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import fx

from plait.graph.build import Model
from plait.graph.constraints import Binding


@dataclass(frozen=True)
class Step:
    """`earlier` may not come in a later stage than `later`: bound by a rule, or (None) for what flows between them."""

    earlier: fx.Node
    later: fx.Node
    binding: Binding | None


@dataclass(frozen=True)
class Reason:
    """Steps from the first node to the second, and back."""

    there: tuple[Step, ...]
    back: tuple[Step, ...]

    @property
    def first(self) -> fx.Node:
        return self.there[0].earlier

    @property
    def second(self) -> fx.Node:
        return self.there[-1].later

    def __str__(self) -> str:
        if len(self.back) == 1 and self.back[0].binding:
            return _told(self.back[0].binding)
        bound = [step for step in (*self.there, *self.back) if step.binding]
        if len(bound) == 1 and bound[0] in self.back:
            return self._between(bound[0])
        forth = self.there if any(step.binding for step in self.there) else ()  # that it merely flows on is no news
        return "; ".join(map(_sentence, (*forth, *self.back)))

    def _between(self, tie: Step) -> str:
        start, end = tie.later, tie.earlier  # what flows from one to the other passes both nodes
        if self.first is start or self.second is end:
            lies = f"{(self.second if self.first is start else self.first).name} lies"
        else:
            lies = "both lie"
        assert tie.binding is not None
        return f"{lies} between {start.name} and {end.name}, which may not be parted: {_told(tie.binding)}"


def why_together(model: Model, first: fx.Node, second: fx.Node) -> Reason | None:
    """None where a cut may part them, or one of them is computed anew by every stage that needs it."""
    atom = model.atom_of.get(first)
    if first is second or atom is None or model.atom_of.get(second) != atom:
        return None
    if second < first:
        first, second = second, first
    steps = _Steps(model, atom)
    return Reason(steps.shortest(first, second), steps.shortest(second, first))


def neighbours(model: Model, atom: int) -> list[Reason]:
    """Why each node of an atom stays with the one before it."""
    steps = _Steps(model, atom)
    return [Reason(steps.shortest(a, b), steps.shortest(b, a)) for a, b in pairwise(model.atom_nodes[atom])]


class _Steps:
    """All steps between the nodes of one atom."""

    def __init__(self, model: Model, atom: int) -> None:
        self._model = model
        self._nodes = set(model.atom_nodes[atom])
        (output,) = model.captured.module.graph.find_nodes(op="output")
        self._losses = self._nodes.intersection(output.all_input_nodes)

    def shortest(self, start: fx.Node, end: fx.Node) -> tuple[Step, ...]:
        """With the fewest rules to understand, and of those the fewest steps (Dijkstra)."""
        came: dict[fx.Node, tuple[int, int, Step | None]] = {start: (0, 0, None)}
        pending = [(0, 0, start)]
        while pending:
            rules, length, node = heapq.heappop(pending)
            if (rules, length) > came[node][:2]:
                continue
            for step in self._from(node):
                cost = rules + bool(step.binding), length + 1
                if step.later not in came or cost < came[step.later][:2]:
                    came[step.later] = *cost, step
                    heapq.heappush(pending, (*cost, step.later))
        path: list[Step] = []
        last = came[end][2]
        while last is not None:
            path.append(last)
            last = came[last.earlier][2]
        return tuple(reversed(path))

    def _from(self, node: fx.Node) -> Iterator[Step]:
        for binding in self._model.bindings_of.get(node, ()):
            others = binding.nodes & self._nodes - {node}
            yield from (Step(node, other, binding) for other in sorted(others))
        yield from (Step(node, user, None) for user in node.users if user in self._nodes)
        if not any(user in self._model.atom_of for user in node.users):  # the loss comes after all that ends
            yield from (Step(node, loss, None) for loss in self._losses - {node})


def _sentence(step: Step) -> str:
    if step.binding:
        return f"{step.earlier.name} stays with {step.later.name}: {_told(step.binding)}"
    if step.later in step.earlier.users:
        return f"{step.later.name} is computed from {step.earlier.name}"
    return f"{step.later.name}, the loss, comes after everything, also {step.earlier.name}"


def _told(binding: Binding) -> str:
    return f"{binding.why} ({binding.rule.replace('_', '-')} rule)"
