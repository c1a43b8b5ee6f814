"""Writing one device's share of a stage: its nodes as they were decided about, and the steps between layouts.

A tensor is brought into another layout where it is first read in that layout, and once: the three projections of an
attention that read the same activations sum its gradient together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import floordiv, mul
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload

from plait.graph.aliases import mutated_inputs
from plait.graph.build import Model
from plait.graph.cut import StageCut
from plait.graph.deferred import product, product_and_sum
from plait.graph.randomness import called, seeded
from plait.graph.sharding.collectives import TensorGroup, copied, gathered, own_part, summed, take_part
from plait.graph.sharding.decision import GROUP, Decision, OwnSize
from plait.graph.sharding.layout import COPIED, WHOLE, Layout, Partial, Split, own_cells
from plait.graph.sharding.propagate import Propagation
from plait.graph.sharding.vocabulary import cross_entropy_of_part
from plait.graph.synced import cross_entropy_over_replicas
from plait.graph.writer import Writer

TENSOR_GROUP = "tensor_group"
Call = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True)
class TensorShare:
    """One device's share of a stage: which parameters are split along which dimension, and between whom."""

    split: Mapping[str, int]
    group: TensorGroup


class SharedWriter(Writer):
    def __init__(self, model: Model, cut: StageCut, found: Propagation, share: TensorShare) -> None:
        super().__init__(model, cut)
        self.found = found
        self.parts = found.parameters
        self.share = share
        self._forms: dict[tuple[fx.Node, Layout], fx.Node] = {}

    def read(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        decision = self.found.decisions.get(reader)
        return self._in_layout(node, decision.needs.get(node, WHOLE) if decision is not None else WHOLE)

    def whole(self, node: fx.Node) -> fx.Node:
        return self._in_layout(node, WHOLE)

    def write(self, node: fx.Node, call: Call | None = None) -> None:
        decision = self.found.decisions.get(node)
        if decision is None:
            super().write(node, call)
            return
        for target in mutated_inputs(node):
            assert target.op != "get_attr" or decision.needs.get(target, WHOLE) == self.found.layout(target), (
                f"{node} would write into a copy of {target}"
            )
        chosen = self._chosen_call(decision, call)
        if chosen is None:
            self.new[node] = self._copy_changed(node, decision)
        else:
            super().write(node, (chosen[0], self._resolved(chosen[1])))
        if decision.bias is not None:
            total = self._call(summed, self._the_group(), self.new[node])
            self.new[node] = self._call(_with_bias, total, self.read(decision.bias, node), _bias_dim(node))

    def _chosen_call(self, decision: Decision, call: Call | None) -> Call | None:
        """What the node was to be anyway (over replicas, weights put off), or what was decided."""
        if call is not None and call[0] is cross_entropy_over_replicas and decision.call is not None:
            return cross_entropy_of_part, (*decision.call[1], call[1][0], call[1][1])
        return call or decision.call

    def with_weights_later(self, node: fx.Node) -> Call | None:
        """Gradients are put off of what is a parameter itself, not of a gathered one or a part taken of a whole one."""
        decision, found, call = self.found.decisions.get(node), self.put_off(node), super().with_weights_later(node)
        if decision is None or found is None or call is None:
            return call
        function, args = call
        others = [weight for weight in found.weights if weight is not decision.bias]
        if decision.arguments or any(decision.needs.get(w, WHOLE) != self.found.layout(w) for w in others):
            return None
        if decision.call is not None and not isinstance(decision.call[0], OpOverload):
            return None
        if decision.bias is None:
            return call
        if function is product_and_sum:
            return product, (args[0], *args[2:])
        return function, tuple(None if a is decision.bias else a for a in args)

    def _copy_changed(self, node: fx.Node, decision: Decision) -> fx.Node:
        """The node's own call, some of whose arguments are a device's own."""
        new = self.graph.node_copy(node, lambda n: self.read(n, node))
        if getattr(new.target, "_opname", "") == "view":  # a part may lie in memory as no view can see it
            new.target = torch.ops.aten.reshape.default
        if not decision.arguments:
            return new
        offset = 3 if node.target is seeded else 0
        args, kwargs = list(new.args), dict(new.kwargs)
        with self.graph.inserting_before(new):
            for index, described in enumerate(called(node)[0]._schema.arguments):
                if described.name not in decision.arguments:
                    continue
                value = fx.map_arg(
                    self._resolved(decision.arguments[described.name]),
                    lambda n: self.read(n, node) if n in self.new else n,
                )
                if described.name in kwargs or index + offset >= len(args):
                    kwargs[described.name] = value
                else:
                    args[index + offset] = value
        new.args, new.kwargs = tuple(args), kwargs
        return new

    def _resolved(self, value: Any) -> Any:
        """Arguments in which a device's own sizes and its group are filled in."""
        if value is GROUP:
            return self._the_group()
        if isinstance(value, (list, tuple)):
            return type(value)(self._resolved(item) for item in value)
        if not isinstance(value, OwnSize):
            return value
        own = own_cells(value.cells, self.share.group.degree, self.share.group.index)[1]
        if isinstance(value.size, int):
            return value.size * own // value.cells
        times = self._call(mul, self.new[value.size], own)
        return self._call(floordiv, times, value.cells)

    def _in_layout(self, node: fx.Node, wanted: Layout) -> fx.Node:
        own = self.found.layout(node)
        if wanted == own or isinstance(node.meta.get("val"), (tuple, list)):
            return self.new[node]
        key = (node, wanted)
        if node in self.found.pinned:  # it may be written to before it is read again
            return self._brought(node, own, wanted)
        if key not in self._forms:
            self._forms[key] = self._brought(node, own, wanted)
        return self._forms[key]

    def _brought(self, node: fx.Node, own: Layout, wanted: Layout) -> fx.Node:
        group = self._the_group()
        if wanted == COPIED:
            return self._call(copied, group, self.whole(node))
        if isinstance(wanted, Split):
            return self._call(own_part, group, self.whole(node), wanted.dim, wanted.cells, wanted.unit)
        if isinstance(own, Split):
            return self._call(gathered, group, self.new[node], own.dim, own.cells, own.unit)
        assert isinstance(own, Partial) and wanted == WHOLE, f"{node} from {own} to {wanted}"
        return self._call(summed, group, self.new[node])

    def _the_group(self) -> fx.Node:
        return self.graph.create_node("get_attr", TENSOR_GROUP)

    def _call(self, function: Any, *args: Any) -> fx.Node:
        return self.graph.call_function(function, args)


def _bias_dim(node: fx.Node) -> int:
    """The dimension of the result that a bias goes along."""
    return 1 if getattr(called(node)[0], "_opname", "").startswith("conv") else -1


def _with_bias(x: Tensor, bias: Tensor, dim: int) -> Tensor:
    return x + bias if dim == -1 else x + bias.view([-1] + [1] * (x.dim() - 1 - dim))


def take_own_parts(module: nn.Module, parts: Mapping[str, Split], group: TensorGroup) -> None:
    """Replaces a module's whole tensors by this device's parts of them."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, part in parts.items():
        if name not in held:
            continue
        own = take_part(group.index, group.degree, held[name].detach(), part.dim, part.cells, part.unit).contiguous()
        folder, _, last = name.rpartition(".")
        tensor = held[name]
        is_parameter = isinstance(tensor, nn.Parameter)
        setattr(module.get_submodule(folder), last, nn.Parameter(own, tensor.requires_grad) if is_parameter else own)
