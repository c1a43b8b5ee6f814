"""Stage code: the captured nodes of one stage as a module with explicit, named inputs and outputs.

A stage is called with the number of rows, the batch inputs it reads and the values it receives, and
returns the values it sends and, on the last stage, the loss. Nothing else reaches it, so its forward
can run anywhere and its backward is `torch.autograd.backward(outputs, gradients)`; with `split_backward` that puts
the gradients of weights off.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from plait.graph.aliases import alias_sets, mutated_inputs
from plait.graph.build import Model, parameter_name
from plait.graph.cut import StageCut
from plait.graph.deferred import WeightGradients
from plait.graph.devices import move_graph
from plait.graph.mixing import CROSS_ENTROPIES, MEAN
from plait.graph.normalise import RANDOMNESS
from plait.graph.randomness import Randomness, operator_of
from plait.graph.rows import argument
from plait.graph.sharding.collectives import TensorGroup
from plait.graph.sharding.layout import Split
from plait.graph.sharding.propagate import Stretch, propagate
from plait.graph.sharding.writer import TENSOR_GROUP, SharedWriter, TensorShare, take_own_parts
from plait.graph.synced import count_targets
from plait.graph.watch import Watch, about_to_read, made
from plait.graph.writer import REPLICAS, WATCH, WEIGHT_GRADIENTS, Writer, node_named


@dataclass(frozen=True)
class StageCode:
    """`module(rows, *inputs, *received, [row_share, *target_totals]) -> (*sends, [loss])`.

    `count_targets(rows, *inputs)` gives the target totals of a whole micro-batch; both it and the last
    arguments exist only where the stage's rows are split over replicas. A backward leaves what it puts off in
    `weight_gradients`. `watch` is told of moments inside the forward, where the code is watched. Of the tensors in
    `parts` the module has this device's part, once `take_parts` has been called.
    """

    cut: StageCut
    module: fx.GraphModule
    inputs: tuple[str, ...]
    randomness: Randomness
    count_targets: fx.GraphModule | None
    split_rows: bool
    weight_gradients: WeightGradients
    watch: Watch | None
    parts: Mapping[str, Split] = field(default_factory=dict)

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
    share: TensorShare | None = None,
) -> StageCode:
    """The code of `cut`, or one device's share of it.

    With `split_rows`, operations that mix rows go over `replicas`. With `split_backward`, the gradients of weights are
    put off as far as `graph.deferred` knows how. With `watched`, the code tells of moments inside it.
    """
    # In the order of the model's code, whatever that of the atoms: gradients are then added up in the same order too.
    nodes = sorted(node for atom in model.atom_nodes[cut.start : cut.end] for node in atom)
    writer = Writer(model, cut) if share is None else _shared_writer(model, cut, share)
    totals = _target_totals(nodes) if split_rows else []
    writer.declare(nodes, totals)
    moments = _Moments(model, cut, nodes) if watched else None
    for node in nodes:
        if moments is not None and moments.reads.get(node):
            writer.tell(about_to_read, tuple(moments.reads[node]))
        call = writer.over_replicas(node) if split_rows else None
        writer.write(node, call or (writer.with_weights_later(node) if split_backward else None))
        for made_node in moments.made.get(node, ()) if moments is not None else ():
            writer.tell(made, made_node.name, writer.whole(made_node))
    outputs = [writer.whole(node_named(model, value.name)) for value in cut.sends]
    if cut.has_loss:
        outputs.append(writer.whole(_loss_node(model)))
    writer.graph.output(tuple(outputs))
    randomness, weight_gradients, watch = Randomness(), WeightGradients(), Watch()
    extra = {RANDOMNESS: randomness, REPLICAS: replicas, WEIGHT_GRADIENTS: weight_gradients, WATCH: watch}
    if share is not None:
        extra[TENSOR_GROUP] = share.group
    return StageCode(
        cut=cut,
        module=writer.module(extra),
        inputs=tuple(writer.inputs),
        randomness=randomness,
        count_targets=_counter(model, cut, nodes, totals) if totals else None,
        split_rows=split_rows,
        weight_gradients=weight_gradients,
        watch=watch if watched else None,
        parts=writer.parts,
    )


def _shared_writer(model: Model, cut: StageCut, share: TensorShare) -> SharedWriter:
    found = propagate(Stretch.of(model, cut.start, cut.end), share.split, share.group.degree)
    return SharedWriter(model, cut, found, share)


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
                self.made.setdefault(last, []).append(node_named(model, value.name))


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
    writer = Writer(model, cut)
    writer.declare_counter(nodes, [a for three in arguments for a in three if isinstance(a, fx.Node)])
    counts = [
        writer.graph.call_function(count_targets, fx.map_arg(three, lambda n: writer.new[n])) for three in arguments
    ]
    writer.graph.output(tuple(counts))
    return writer.module({})


def _loss_node(model: Model) -> fx.Node:
    (output,) = model.captured.module.graph.find_nodes(op="output")
    (loss,) = output.all_input_nodes
    return loss


def take_parts(code: StageCode, group: TensorGroup) -> None:
    """Keeps this device's parts of the stage's tensors, which the module has whole so far."""
    for module in code.modules:
        take_own_parts(module, code.parts, group)


def place_stage(code: StageCode, device: torch.device) -> None:
    """Moves a stage's tensors, and the constants its code makes, to `device`."""
    held = [tensor for module in code.modules for tensor in (*module.parameters(), *module.buffers())]
    if device.type == "cpu" and all(tensor.device.type == "cpu" for tensor in held):
        return
    for module in code.modules:
        module.to(device)
        move_graph(module.graph, device)
        module.recompile()
