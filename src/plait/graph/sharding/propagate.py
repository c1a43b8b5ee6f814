"""Propagation: from the parameters that are split to the layout of every tensor of a stretch of the chain.

Nodes are decided in their order, each from the layouts of its inputs. How a split dimension is seen (its sections and
cells) is what later nodes need of it: queries come in heads, a projection may hold three of them. So a round that meets
what does not fit is followed by one in which the parameters are seen as it asked, until nothing is asked any more.
There
are as many rounds as it takes, up to a limit.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import gcd

from torch import Tensor, fx

from plait.graph.aliases import alias_sets, is_training_batch_norm, mutated_inputs
from plait.graph.build import Model, parameter_name
from plait.graph.sharding.decision import Context, Decision, Demands, Hint
from plait.graph.sharding.layout import WHOLE, Layout, Split
from plait.graph.sharding.rules import decide

_ROUNDS = 30


@dataclass
class Propagation:
    """The layouts and decisions of some nodes, and the reasons for what is whole though its inputs were not."""

    layouts: dict[fx.Node, Layout | tuple[Layout, ...]] = field(default_factory=dict)
    decisions: dict[fx.Node, Decision] = field(default_factory=dict)
    parameters: dict[str, Split] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)  # by parameter or node
    pinned: frozenset[fx.Node] = frozenset()

    def layout(self, node: fx.Node) -> Layout:
        found = self.layouts.get(node, WHOLE)
        return WHOLE if isinstance(found, tuple) else found


@dataclass(frozen=True)
class Stretch:
    """The nodes of some atoms in the order of the model's code, with what is the same in every round."""

    model: Model
    nodes: tuple[fx.Node, ...]
    sources: tuple[fx.Node, ...]  # the parameters and buffers they read
    pinned: frozenset[fx.Node]  # share memory that something writes into
    written: tuple[frozenset[str], ...] = ()  # buffers that one node writes to together
    shapes: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, start: int, end: int) -> "Stretch":
        nodes = sorted(node for atom in model.atom_nodes[start:end] for node in atom)
        sources = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n.op == "get_attr")
        return cls(model, tuple(nodes), tuple(sources), _pinned(model), tuple(_written(model, nodes)))

    def splittable(self, split: Mapping[str, int]) -> dict[str, int]:
        """Of what is to be split, what can be: running statistics together, other buffers that change not at all."""
        left = dict(split)
        for names in self.written:
            if len(names) < 2 or not names <= left.keys():
                for name in names:
                    left.pop(name, None)
        return left


def propagate(stretch: Stretch, split: Mapping[str, int], degree: int) -> Propagation:
    """Decides about every node of the stretch."""
    split = stretch.splittable(split)
    hints: dict[str, Hint] = {}
    for _ in range(_ROUNDS):
        found, demands = propagate_once(stretch, stretch.nodes, split, degree, hints)
        if not heeded(hints, demands, found.parameters, stretch):
            return found
    return found  # whatever does not fit is gathered, so this is right all the same


def propagate_once(
    stretch: Stretch, nodes: Iterable[fx.Node], split: Mapping[str, int], degree: int, hints: Mapping[str, Hint]
) -> tuple[Propagation, Demands]:
    found = Propagation(pinned=stretch.pinned)
    place_parameters(stretch, found, split, degree, hints)
    context = Context(found.layouts, stretch.model.needs_gradient, Demands(), stretch.shapes)
    for node in nodes:
        decide_node(stretch, node, found, context)
    return found, context.demands


def place_parameters(
    stretch: Stretch, found: Propagation, split: Mapping[str, int], degree: int, hints: Mapping[str, Hint]
) -> None:
    for node in stretch.sources:
        name = parameter_name(stretch.model.captured, node)
        value = node.meta.get("val")
        if name not in split or not isinstance(value, Tensor):
            continue
        dim, size = split[name], int(value.shape[split[name]])
        hint = hints.get(name, Hint(1, size))
        if hint.cells < degree:
            found.whole[name] = f"it comes in {hint.cells} parts that stay together, for {degree} devices"
            continue
        found.parameters[name] = Split(dim, hint.cells, size // (hint.sections * hint.cells), name)
        found.layouts[node] = found.parameters[name]


def decide_node(stretch: Stretch, node: fx.Node, found: Propagation, context: Context) -> None:
    if not any(n in found.layouts for n in node.all_input_nodes):
        return
    pinned = node in stretch.pinned
    decision = Decision(why="it shares memory that is written to") if pinned else decide(node, context)
    found.decisions[node] = decision
    if decision.gives != WHOLE:
        found.layouts[node] = decision.gives
    if decision.why:
        found.whole[node.name] = decision.why


def heeded(hints: dict[str, Hint], demands: Demands, parameters: Mapping[str, Split], stretch: Stretch) -> bool:
    """Changes how parameters are seen as was asked; False where nothing was asked that is not so already."""
    sizes = {}
    for node in stretch.sources:
        name = parameter_name(stretch.model.captured, node)
        if name in parameters:
            sizes[name] = int(node.meta["val"].shape[parameters[name].dim])
    changed = False
    for name, sections in demands.sections.items():
        if name in sizes and hints.get(name, Hint(1, 0)).sections == 1 and sizes[name] % sections == 0:
            hints[name] = Hint(sections, sizes[name] // sections)
            changed = True
    for name, cells in demands.cells.items():
        if name in sizes and name not in demands.sections:
            hint = hints.get(name, Hint(1, sizes[name]))
            fewer = gcd(hint.cells, cells)
            if fewer != hint.cells:
                hints[name] = Hint(hint.sections, fewer)
                changed = True
    for name, wanted in demands.follow.items():
        if name in sizes and sizes[name] % (wanted.sections * wanted.cells) == 0 and hints.get(name) != wanted:
            hints[name] = wanted
            changed = True
    return changed


def _pinned(model: Model) -> frozenset[fx.Node]:
    """Nodes that share memory with a tensor that is overwritten; a buffer that a BatchNorm updates is none of them."""
    graph = model.captured.module.graph
    sets = alias_sets(graph)
    return frozenset(
        member
        for node in graph.nodes
        for target in mutated_inputs(node)
        for member in sets.members(target)
        if len(sets.members(target)) > 1 or target.op != "get_attr"
    )


def _written(model: Model, nodes: Iterable[fx.Node]) -> Iterator[frozenset[str]]:
    for node in nodes:
        names = frozenset(parameter_name(model.captured, n) for n in mutated_inputs(node) if n.op == "get_attr")
        if is_training_batch_norm(node):
            yield names
        else:
            yield from (frozenset({name}) for name in names)
