"""Writing a stage's code: nodes of the captured graph copied into a new one, with named inputs."""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from torch import fx, nn

from plait.graph.aliases import is_training_batch_norm
from plait.graph.build import Model, parameter_name
from plait.graph.capture.sizes import ROWS
from plait.graph.cut import StageCut
from plait.graph.deferred import Deferrable, deferrable
from plait.graph.normalise import RANDOMNESS
from plait.graph.randomness import operator_of
from plait.graph.rows import argument
from plait.graph.sharding.layout import Split
from plait.graph.synced import batch_norm_over_replicas, cross_entropy_over_replicas

REPLICAS = "replicas"
ROW_SHARE = "row_share"
WEIGHT_GRADIENTS = "weight_gradients"
WATCH = "watch"


class Writer:
    """Copies nodes of the captured graph into a new one, reading what they need from its inputs."""

    def __init__(self, model: Model, cut: StageCut) -> None:
        self.model = model
        self.cut = cut
        self.graph = fx.Graph()
        self.new: dict[fx.Node, fx.Node] = {}
        self.inputs: list[str] = []
        self.totals: dict[fx.Node, fx.Node] = {}
        self.parts: Mapping[str, Split] = {}  # parameters and buffers of which a device has a part
        # What a step may leave out altogether is counted by autograd's own hooks, so its gradients come from autograd.
        self.deferrable = {p.name for p in cut.parameters if p.trainable and not p.may_be_skipped}

    def declare(self, nodes: Iterable[fx.Node], totals: list[fx.Node]) -> None:
        """Placeholders, parameters and the free nodes that `nodes` need, in that order."""
        needed = self._needed(source for node in nodes for source in node.all_input_nodes)
        self._declare_inputs(needed)
        for value in self.cut.receives:
            self.new[node_named(self.model, value.name)] = self.graph.placeholder(value.name)
        if totals:
            self.new_row_share = self.graph.placeholder(ROW_SHARE)
            self.totals = {node: self.graph.placeholder(f"total_{node.name}") for node in totals}
        self._declare_constants(needed)

    def declare_counter(self, nodes: Iterable[fx.Node], counted: Iterable[fx.Node]) -> None:
        """The inputs that `nodes` need, as in `declare`, and of the rest only what `counted` need."""
        self._declare_inputs(self._needed(source for node in nodes for source in node.all_input_nodes))
        self._declare_constants(self._needed(counted))

    def _declare_inputs(self, needed: Set[fx.Node]) -> None:
        placeholders = self.model.captured.module.graph.find_nodes(op="placeholder")
        rows = next(node for node in placeholders if node.target == ROWS)
        self.new[rows] = self.graph.placeholder(ROWS)
        for node in placeholders:
            if node is not rows and node in needed:
                self.new[node] = self.graph.placeholder(node.name)
                self.inputs.append(node.name)

    def _declare_constants(self, needed: Set[fx.Node]) -> None:
        everything = self.model.captured.module.graph.nodes
        for node in everything:
            if node.op == "get_attr" and node in needed:
                self.new[node] = self.graph.get_attr(parameter_name(self.model.captured, node))
        for node in everything:
            if node in self.model.free and node in needed:
                self.write(node)

    def _needed(self, sources: Iterable[fx.Node]) -> set[fx.Node]:
        """`sources`, and what those of them that are free are computed from."""
        needed: set[fx.Node] = set()
        pending = list(sources)
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                if node in self.model.free:
                    # whoever writes into it (a mask filled in place) comes with it
                    pending += [*node.all_input_nodes, *self.model.free_writers.get(node, ())]
        return needed

    def write(self, node: fx.Node, call: tuple[Any, tuple[Any, ...]] | None = None) -> None:
        """Copies a node, or writes a call in its place whose arguments are nodes of either graph."""
        if call is None:
            self.new[node] = self.graph.node_copy(node, lambda n: self.read(n, node))
        else:
            function, args = call
            mapped = fx.map_arg(args, lambda n: self.read(n, node) if n in self.new else n)
            self.new[node] = self.graph.call_function(function, mapped)

    def read(self, node: fx.Node, reader: fx.Node) -> fx.Node:  # noqa: ARG002 - it matters where layers are shared
        """A captured node as another one reads it."""
        return self.new[node]

    def whole(self, node: fx.Node) -> fx.Node:
        """A captured node's tensor as other stages see it."""
        return self.new[node]

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Writes a call that tells the watch of a moment."""
        self.graph.call_function(function, (self.graph.create_node("get_attr", WATCH), *arguments))

    def with_weights_later(self, node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
        """The call that computes a node and puts the gradients of its weights off, where there is one."""
        found = self.put_off(node)
        if found is None:
            return None
        return found.function, (self.graph.create_node("get_attr", WEIGHT_GRADIENTS), *found.arguments)

    def put_off(self, node: fx.Node) -> Deferrable | None:
        """How the gradients of a node's weights can be put off."""
        return deferrable(node, lambda source: parameter_name(self.model.captured, source) in self.deferrable)

    def over_replicas(self, node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
        """The call that computes a row-mixing node over split rows, None for any other node."""
        if is_training_batch_norm(node):
            x, weight, bias, mean, variance, _, momentum, eps = node.args[:8]
            exchange = self.graph.create_node("get_attr", REPLICAS)
            return batch_norm_over_replicas, (exchange, x, weight, bias, mean, variance, momentum, eps)
        if node in self.totals:
            function = operator_of(node)
            assert function is not None
            return cross_entropy_over_replicas, (
                self.totals[node],
                self.new_row_share,
                function._opname.startswith("nll"),
                node.args[0],
                node.args[1],
                argument(node, "weight"),
                argument(node, "ignore_index"),
                argument(node, "label_smoothing") or 0.0,
            )
        return None

    def module(self, extra: dict[str, Any]) -> fx.GraphModule:
        source = self.model.captured.module
        attributes: dict[str, Any] = {}
        for node, copy in self.new.items():
            if node.op == "get_attr" and node.target != RANDOMNESS:
                attributes[str(copy.target)] = _attribute(source, str(node.target))
        attributes |= {name: value for name, value in extra.items() if self._reads(name)}
        return fx.GraphModule(attributes, self.graph, class_name=f"Stage{self.cut.index}")

    def _reads(self, name: str) -> bool:
        return any(node.op == "get_attr" and node.target == name for node in self.graph.nodes)


def _attribute(module: nn.Module, target: str) -> Any:
    holder: Any = module
    for part in target.split("."):
        holder = getattr(holder, part)
    return holder


def node_named(model: Model, name: str) -> fx.Node:
    return model.node_by_name[name]
