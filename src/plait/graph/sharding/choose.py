"""The choice of what is split: dynamic programming over the layouts of what is alive.

Nodes are taken in the order of the model's code. A state is the layout of every tensor that a later node reads, with
the layouts it has been brought into; of states that agree in these the cheapest is kept. Where a node first reads a
weight, the state branches: whole, split by columns, split by rows. With P devices, alpha the latency of a message and
beta the seconds per byte, a transition costs

    the node's seconds x the part of its work that the busiest device has          (forward and backward)
    + per all-reduce of S bytes    2 (P-1) (alpha + S beta / P)                     (`Step`s between layouts,
    + per all-gather of S bytes      (P-1) (alpha + S beta / P)                      forward and backward)
    + per weight of S bytes     S x the part of it a device has x gradient_seconds_per_byte

`_MOST_STATES` cheapest states are kept after a node, so the choice is the best there is while fewer than that are alive
(one residual stream: some ten), and a good one otherwise. S2's pure batch and pure model are among the ways through.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import Tensor, fx

from plait.graph.build import Model, parameter_name
from plait.graph.graph import ITEM_BYTES
from plait.graph.layouts import ROWS
from plait.graph.randomness import called
from plait.graph.sharding.decision import Context, Decision, Demands, Hint
from plait.graph.sharding.layout import WHOLE, Layout, Split, own_cells
from plait.graph.sharding.measure import Step, crossing, operations, own_exchanges, steps, work_share
from plait.graph.sharding.propagate import Stretch, heeded, propagate_once
from plait.graph.sharding.rules import decide

_MOST_STATES = 40
_SECONDS_PER_OPERATION = 1e-12  # of forward and backward, where no times are given
_BACKWARD = 3.0  # operations of a forward and a backward for one of the forward
# Where weights come in, and the dimension of a weight that makes columns.
_COLUMNS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "embedding", "t", "transpose", "permute", "numpy_T"), 0),
    **dict.fromkeys(("addmm", "mm", "matmul"), 1),
}


def choose_split(
    model: Model,
    start: int,
    end: int,
    degree: int,
    *,
    latency: float,
    seconds_per_byte: float,
    rows: int = 8,
    atom_seconds: Sequence[float] | None = None,
    gradient_seconds_per_byte: float = 0.0,
) -> Mapping[str, int]:
    """Which parameters of atoms `start..end-1` to split over `degree` devices, each with the dimension.

    For micro-batches of `rows` rows; `atom_seconds` has the time of each of these atoms' forward and backward for them.
    A parameter that other stages read too stays whole.
    """
    if degree == 1:
        return {}
    links = _Links(degree, latency, seconds_per_byte, gradient_seconds_per_byte, rows)
    return _Search(model, start, end, links, atom_seconds).best()


@dataclass(frozen=True)
class _Links:
    degree: int
    latency: float
    seconds_per_byte: float
    gradient_seconds_per_byte: float
    rows: int

    def seconds(self, step: Step) -> float:
        messages = (self.degree - 1) * (2 if step.kind == "all-reduce" else 1)
        return messages * (self.latency + step.bytes_for(self.rows) * self.seconds_per_byte / self.degree)


@dataclass
class _State:
    cost: float = 0.0
    layouts: dict[fx.Node, Any] = field(default_factory=dict)
    forms: set[tuple[fx.Node, Layout]] = field(default_factory=set)
    chosen: tuple[Any, ...] = ()  # the last choice and, in it, those before

    def split(self) -> dict[str, int]:
        found, rest = {}, self.chosen
        while rest:
            rest, name, dim = rest
            found[name] = dim
        return found


class _Search:
    def __init__(self, model: Model, start: int, end: int, links: _Links, atom_seconds: Sequence[float] | None) -> None:
        self._model, self._links = model, links
        self._stretch = Stretch.of(model, start, end)
        self._seconds = self._node_seconds(start, end, atom_seconds)
        self._crossing = {model.node_by_name[name] for name in crossing(model, start, end)}
        self._inside = {
            p.name
            for p in model.graph.parameters
            if all(start <= atom < end for atom in p.atoms) and not p.may_be_skipped
        }
        self._last_use = {n: node for node in self._stretch.nodes for n in node.all_input_nodes}
        self._hints = self._tilings()
        self._known: dict[Any, Decision] = {}

    def best(self) -> dict[str, int]:
        states = [_State()]
        placed: set[fx.Node] = set()
        for node in self._stretch.nodes:
            new = [n for n in node.all_input_nodes if n.op == "get_attr" and n not in placed]
            placed |= set(new)
            states = [after for state in states for after in self._after(state, node, new)]
            states = self._cheapest(states, node)
        return min(states, key=lambda state: state.cost).split()

    # What a node may do

    def _after(self, state: _State, node: fx.Node, new: list[fx.Node]) -> Iterator[_State]:
        for weights in self._options(state, node, new):
            layouts = {**state.layouts, **weights}
            decision = self._decision(node, layouts)
            if any(decision.needs.get(n, WHOLE) != layout for n, layout in weights.items()):
                continue  # it would only be gathered again
            followers = self._followers(decision, new, weights)
            yield self._reached(state, node, decision, {**layouts, **followers}, {**weights, **followers})

    def _options(self, state: _State, node: fx.Node, new: list[fx.Node]) -> Iterator[dict[fx.Node, Split]]:
        yield {}
        if (statistics := self._statistics(state, node, new)) is not None:
            yield statistics
        weight = next((n for n in new if len(_shape(n)) > 1 and self._may_split(n)), None)
        columns = _COLUMNS.get(_name(node))
        if weight is None or columns is None:
            return
        for dim in range(min(2, len(_shape(weight)))):
            yield from ({weight: split} for split in self._ways(state, node, weight, dim, by_columns=dim == columns))

    def _ways(self, state: _State, node: fx.Node, weight: fx.Node, dim: int, *, by_columns: bool) -> Iterator[Split]:
        """How a dimension of a weight can be seen: rows as the activations they meet, columns as later nodes need."""
        name, size = parameter_name(self._model.captured, weight), _shape(weight)[dim]
        met = [layout for n in node.all_input_nodes if isinstance(layout := state.layouts.get(n), Split)]
        if not by_columns and met and size % (met[0].cells * met[0].unit) == 0:
            yield Split(dim, met[0].cells, met[0].unit, name)
            return
        hint = self._hints.get(name, Hint(1, size)) if by_columns else Hint(1, size)
        if hint.cells >= self._links.degree and size % (hint.sections * hint.cells) == 0:
            yield Split(dim, hint.cells, size // (hint.sections * hint.cells), name)

    def _statistics(self, state: _State, node: fx.Node, new: list[fx.Node]) -> dict[fx.Node, Split] | None:
        """A BatchNorm's tensors split as its channels are."""
        if _name(node) != "batch_norm":
            return None
        split = state.layouts.get(node.all_input_nodes[0])
        names = {n: parameter_name(self._model.captured, n) for n in new}
        if not isinstance(split, Split) or split.dim != 1 or not set(names.values()) <= self._inside:
            return None
        return {n: Split(0, split.cells, split.unit, split.origin) for n in new}

    def _followers(
        self, decision: Decision, new: list[fx.Node], weights: Mapping[fx.Node, Split]
    ) -> dict[fx.Node, Split]:
        """Parameters a device needs only a part of: biases, weights of elementwise operations."""
        return {
            n: need
            for n, need in decision.needs.items()
            if n in new and n not in weights and isinstance(need, Split) and self._may_split(n)
        }

    def _may_split(self, node: fx.Node) -> bool:
        return parameter_name(self._model.captured, node) in self._inside and bool(node.meta.get("is_parameter"))

    def _decision(self, node: fx.Node, layouts: Mapping[fx.Node, Any]) -> Decision:
        if not any(n in layouts for n in node.all_input_nodes):
            return Decision()
        key = (node, *(layouts.get(n) for n in node.all_input_nodes))
        if key not in self._known:
            context = Context(layouts, self._model.needs_gradient, Demands(), self._stretch.shapes)
            self._known[key] = Decision() if node in self._stretch.pinned else decide(node, context)
        return self._known[key]

    # What it costs

    def _reached(
        self,
        state: _State,
        node: fx.Node,
        decision: Decision,
        layouts: dict[fx.Node, Any],
        weights: Mapping[fx.Node, Split],
    ) -> _State:
        links, forms, needs_gradient = self._links, set(state.forms), self._model.needs_gradient
        taken = list(own_exchanges(node, decision))
        for source in node.all_input_nodes:
            wanted = decision.needs.get(source, WHOLE)
            taken += steps(source, _one(layouts.get(source, WHOLE)), wanted, forms, needs_gradient)
        if decision.gives != WHOLE:
            layouts[node] = decision.gives
        if node in self._crossing:
            taken += steps(node, _one(decision.gives), WHOLE, forms, needs_gradient)
        cost = state.cost + self._seconds[node] * work_share(decision, links.degree)
        cost += sum(map(links.seconds, taken))
        chosen = state.chosen
        for weight, split in weights.items():
            own = own_cells(split.cells, links.degree, 0)[1] / split.cells
            cost -= (1 - own) * _bytes(weight) * links.gradient_seconds_per_byte
            chosen = (chosen, parameter_name(self._model.captured, weight), split.dim)
        return _State(cost, layouts, forms, chosen)

    def _cheapest(self, states: Iterable[_State], node: fx.Node) -> list[_State]:
        """Of the states that agree in all that is still to be read the cheapest; and of these the cheapest few."""
        gone = {n for n in node.all_input_nodes if self._last_use[n] is node}
        if node not in self._last_use:
            gone.add(node)
        best: dict[Any, _State] = {}
        for state in states:
            for n in gone:
                state.layouts.pop(n, None)
            state.forms = {form for form in state.forms if form[0] not in gone}
            key = (frozenset(state.layouts.items()), frozenset(state.forms))
            if key not in best or state.cost < best[key].cost:
                best[key] = state
        return sorted(best.values(), key=lambda state: state.cost)[:_MOST_STATES]

    def _node_seconds(self, start: int, end: int, atom_seconds: Sequence[float] | None) -> dict[fx.Node, float]:
        """An atom's time falls to its nodes by what they compute."""
        found = {}
        for index, nodes in enumerate(self._model.atom_nodes[start:end]):
            counts = {node: operations(node) for node in nodes}
            total = sum(counts.values())
            for node, count in counts.items():
                if atom_seconds is None:
                    found[node] = count * _BACKWARD * _SECONDS_PER_OPERATION * self._links.rows / ROWS
                else:
                    found[node] = atom_seconds[index] * count / total if total else 0.0
        return found

    def _tilings(self) -> dict[str, Hint]:
        """How columns are seen by what comes after them: found by splitting all weights by columns."""
        split: dict[str, int] = {}
        for node in self._stretch.nodes:
            columns = _COLUMNS.get(_name(node))
            for n in node.all_input_nodes:
                if columns is not None and n.op == "get_attr" and self._may_split(n):
                    split.setdefault(parameter_name(self._model.captured, n), columns if len(_shape(n)) > 1 else 0)
        hints: dict[str, Hint] = {}
        for _ in range(8):
            found, demands = propagate_once(self._stretch, self._stretch.nodes, split, self._links.degree, hints)
            if not heeded(hints, demands, found.parameters, self._stretch):
                break
        return hints


def _one(layout: Layout | tuple[Layout, ...]) -> Layout:
    return WHOLE if isinstance(layout, tuple) else layout


def _shape(node: fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(int(size) for size in value.shape) if isinstance(value, Tensor) else ()


def _bytes(node: fx.Node) -> float:
    return float(prod(_shape(node)) * ITEM_BYTES[str(node.meta["val"].dtype).removeprefix("torch.")])


def _name(node: fx.Node) -> str:
    return str(getattr(called(node)[0], "_opname", ""))
