"""Stage code: the captured nodes of one stage as a module with explicit, named inputs and outputs.

A stage is called with the number of rows, the batch inputs it reads and the values it receives, and
returns the values it sends and, on the last stage, the loss. Nothing else reaches it, so its forward
can run anywhere and its backward is `torch.autograd.backward(outputs, gradients)`; with `split_backward` that puts
the gradients of weights off.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from plait.graph.aliases import alias_sets, is_training_batch_norm, mutated_inputs
from plait.graph.build import Model, parameter_name
from plait.graph.capture.sizes import ROWS
from plait.graph.cut import StageCut
from plait.graph.deferred import WeightGradients, deferrable
from plait.graph.devices import move_graph
from plait.graph.mixing import CROSS_ENTROPIES, MEAN
from plait.graph.normalise import RANDOMNESS
from plait.graph.randomness import Randomness, operator_of
from plait.graph.rows import argument
from plait.graph.synced import batch_norm_over_replicas, count_targets, cross_entropy_over_replicas
from plait.graph.watch import Watch, about_to_read, made

REPLICAS = "replicas"
ROW_SHARE = "row_share"
WEIGHT_GRADIENTS = "weight_gradients"
WATCH = "watch"


@dataclass(frozen=True)
class StageCode:
    """`module(rows, *inputs, *received, [row_share, *target_totals]) -> (*sends, [loss])`.

    `count_targets(rows, *inputs)` gives the target totals of a whole micro-batch; both it and the last
    arguments exist only where the stage's rows are split over replicas. A backward leaves what it puts off in
    `weight_gradients`. `watch` is told of moments inside the forward, where the code is watched.
    """

    cut: StageCut
    module: fx.GraphModule
    inputs: tuple[str, ...]
    randomness: Randomness
    count_targets: fx.GraphModule | None
    split_rows: bool
    weight_gradients: WeightGradients
    watch: Watch | None

    @property
    def modules(self) -> tuple[fx.GraphModule, ...]:
        return (self.module,) if self.count_targets is None else (self.module, self.count_targets)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        found = dict(self.module.named_parameters())
        return {p.name: found[p.name] for p in self.cut.parameters if not p.is_buffer}

    def named_buffers(self) -> dict[str, Tensor]:
        found = dict(self.module.named_buffers())
        return {p.name: found[p.name] for p in self.cut.parameters if p.is_buffer}


def build_stage(
    model: Model,
    cut: StageCut,
    *,
    split_rows: bool = False,
    replicas: Any = None,
    split_backward: bool = False,
    watched: bool = False,
) -> StageCode:
    """The code of `cut`.

    With `split_rows`, operations that mix rows go over `replicas`. With `split_backward`, the gradients of weights are
    put off as far as `graph.deferred` knows how. With `watched`, the code tells of moments inside it.
    """
    # In the order of the model's code, whatever that of the atoms: gradients are then added up in the same order too.
    nodes = sorted(node for atom in model.atom_nodes[cut.start : cut.end] for node in atom)
    writer = _Writer(model, cut)
    totals = _target_totals(nodes) if split_rows else []
    writer.declare(nodes, totals)
    moments = _Moments(model, cut, nodes) if watched else None
    for node in nodes:
        if moments is not None and moments.reads.get(node):
            writer.tell(about_to_read, tuple(moments.reads[node]))
        call = writer.over_replicas(node) if split_rows else None
        writer.write(node, call or (writer.with_weights_later(node) if split_backward else None))
        for made_node in moments.made.get(node, ()) if moments is not None else ():
            writer.tell(made, made_node.name, writer.new[made_node])
    outputs = [writer.new[_node_named(model, value.name)] for value in cut.sends]
    if cut.has_loss:
        outputs.append(writer.new[_loss_node(model)])
    writer.graph.output(tuple(outputs))
    randomness, weight_gradients, watch = Randomness(), WeightGradients(), Watch()
    extra = {RANDOMNESS: randomness, REPLICAS: replicas, WEIGHT_GRADIENTS: weight_gradients, WATCH: watch}
    return StageCode(
        cut=cut,
        module=writer.module(extra),
        inputs=tuple(writer.inputs),
        randomness=randomness,
        count_targets=_counter(model, cut, nodes, totals) if totals else None,
        split_rows=split_rows,
        weight_gradients=weight_gradients,
        watch=watch if watched else None,
    )


class _Moments:
    """Before which node which parameters are read first, and after which node which values are there for others.

    A value is there when its whole atom is done, whose nodes may overwrite it.
    """

    def __init__(self, model: Model, cut: StageCut, nodes: Sequence[fx.Node]) -> None:
        self.reads: dict[fx.Node, list[str]] = {}
        self.made: dict[fx.Node, list[fx.Node]] = {}
        unread = {p.name for p in cut.parameters if p.trainable}
        for node in nodes:
            read = [
                parameter_name(model.captured, source) for source in node.all_input_nodes if source.op == "get_attr"
            ]
            first = [name for name in dict.fromkeys(read) if name in unread]
            unread -= set(first)
            self.reads[node] = first
        self.reads[nodes[0]] += sorted(unread)  # read in some other way
        place = {node: index for index, node in enumerate(nodes)}
        for value in cut.sends:
            if value.producer + 1 < cut.end:
                last = max(model.atom_nodes[value.producer], key=place.__getitem__)
                self.made.setdefault(last, []).append(_node_named(model, value.name))


class _Writer:
    """Copies nodes of the captured graph into a new one, reading what they need from its inputs."""

    def __init__(self, model: Model, cut: StageCut) -> None:
        self.model = model
        self.cut = cut
        self.graph = fx.Graph()
        self.new: dict[fx.Node, fx.Node] = {}
        self.inputs: list[str] = []
        self.totals: dict[fx.Node, fx.Node] = {}
        # What a step may leave out altogether is counted by autograd's own hooks, so its gradients come from autograd.
        self.deferrable = {p.name for p in cut.parameters if p.trainable and not p.may_be_skipped}

    def declare(self, nodes: Iterable[fx.Node], totals: list[fx.Node]) -> None:
        """Placeholders, parameters and the free nodes that `nodes` need, in that order."""
        needed = self._needed(source for node in nodes for source in node.all_input_nodes)
        self._declare_inputs(needed)
        for value in self.cut.receives:
            self.new[_node_named(self.model, value.name)] = self.graph.placeholder(value.name)
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
        if call is None:
            self.new[node] = self.graph.node_copy(node, lambda n: self.new[n])
        else:
            function, args = call
            mapped = fx.map_arg(args, lambda n: self.new.get(n, n))
            self.new[node] = self.graph.call_function(function, mapped)

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Writes a call that tells the watch of a moment."""
        self.graph.call_function(function, (self.graph.create_node("get_attr", WATCH), *arguments))

    def with_weights_later(self, node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
        """The call that computes a node and puts the gradients of its weights off, where there is one."""
        found = deferrable(node, lambda source: parameter_name(self.model.captured, source) in self.deferrable)
        if found is None:
            return None
        return found.function, (self.graph.create_node("get_attr", WEIGHT_GRADIENTS), *found.arguments)

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


def written_buffers(model: Model, cut: StageCut) -> frozenset[str]:
    """The buffers that a forward of the stage overwrites."""
    sets = alias_sets(model.captured.module.graph)
    return frozenset(
        parameter_name(model.captured, member)
        for nodes in model.atom_nodes[cut.start : cut.end]
        for node in nodes
        for target in mutated_inputs(node)
        for member in sets.members(target)
        if member.op == "get_attr"
    )


def _attribute(module: nn.Module, target: str) -> Any:
    holder: Any = module
    for part in target.split("."):
        holder = getattr(holder, part)
    return holder


def _target_totals(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    return [
        node
        for node in nodes
        if (function := operator_of(node)) is not None
        and function._opname in CROSS_ENTROPIES
        and argument(node, "reduction") == MEAN
    ]


def _counter(model: Model, cut: StageCut, nodes: list[fx.Node], totals: list[fx.Node]) -> fx.GraphModule:
    """A module from the same batch inputs to the number of counted targets of each cross-entropy."""
    arguments: list[Any] = [(node.args[1], argument(node, "weight"), argument(node, "ignore_index")) for node in totals]
    writer = _Writer(model, cut)
    writer.declare_counter(nodes, [a for three in arguments for a in three if isinstance(a, fx.Node)])
    counts = [
        writer.graph.call_function(count_targets, fx.map_arg(three, lambda n: writer.new[n])) for three in arguments
    ]
    writer.graph.output(tuple(counts))
    return writer.module({})


def _node_named(model: Model, name: str) -> fx.Node:
    return model.node_by_name[name]


def _loss_node(model: Model) -> fx.Node:
    (output,) = model.captured.module.graph.find_nodes(op="output")
    (loss,) = output.all_input_nodes
    return loss


def place_stage(code: StageCode, device: torch.device) -> None:
    """Moves a stage's tensors, and the constants its code makes, to `device`."""
    held = [tensor for module in code.modules for tensor in (*module.parameters(), *module.buffers())]
    if device.type == "cpu" and all(tensor.device.type == "cpu" for tensor in held):
        return
    for module in code.modules:
        module.to(device)
        move_graph(module.graph, device)
        module.recompile()
