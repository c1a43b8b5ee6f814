"""A model's memory profile, recorded in one run of the whole, forward and backward.

Nothing is computed where the tensors are on `meta`. An atom is charged with what is alive while it runs beyond what
the atoms before it have saved: values that later atoms still need, gradients on their way, a parameter's gradient
before it is added to the others, temporaries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from plait.cost.live import LiveMemory
from plait.cost.memory import ALWAYS_HELD, NEVER_SAVED, AtomMemory, GradientMemory, MemoryProfile, ValueMemory
from plait.cost.stand_ins import runnable
from plait.cost.tensors import tensors_in
from plait.cost.walk import attribute, comes_in_time
from plait.graph import Model
from plait.graph.aliases import is_training_batch_norm
from plait.graph.deferred import deferrable
from plait.graph.devices import move_arguments
from plait.graph.synced import batch_norm_over_replicas


@dataclass(frozen=True)
class _Recorded:
    """By atom, but for `values`."""

    forward: list[float]
    backward: list[float]
    weight_inputs: list[float]
    saved: tuple[float, ...]
    values: dict[str, ValueMemory]


@dataclass(frozen=True)
class RecordedMemory:
    """A profile, and per number of rows the bytes that each atom saves (memory that several save, the first)."""

    profile: MemoryProfile
    saved: Mapping[int, tuple[float, ...]]


def record_memory(
    model: Model, inputs: Mapping[int, Mapping[str, Tensor]], device: torch.device | str
) -> RecordedMemory:
    """The memory of `model` on `device`, fitted between the least and the most rows of `inputs`."""

    def record(*, coupled: bool) -> dict[int, _Recorded]:
        return {
            rows: _Recording(model, tensors, rows, device, coupled=coupled).run() for rows, tensors in inputs.items()
        }

    alone = record(coupled=False)
    exchanges = any(mixer.remedy == "exchange" for mixer in model.graph.row_mixers)
    coupled = _fitted(record(coupled=True)) if exchanges else ()
    profile = MemoryProfile(_fitted(alone), alone[max(inputs)].values, coupled)
    return RecordedMemory(profile, {rows: recorded.saved for rows, recorded in alone.items()})


def _fitted(recorded: Mapping[int, _Recorded]) -> tuple[AtomMemory, ...]:
    low, high = min(recorded), max(recorded)
    few, many = recorded[low], recorded[high]

    def line(x: float, y: float) -> tuple[float, float]:
        slope = (y - x) / (high - low) if high > low else y / high
        return y - slope * high, slope

    return tuple(
        AtomMemory(*line(f, g), *line(b, c), *line(v, w))
        for f, g, b, c, v, w in zip(
            few.forward, many.forward, few.backward, many.backward, few.weight_inputs, many.weight_inputs, strict=True
        )
    )


class _Recording:
    """One run of the model's atoms in their order, what is free of them first, as a stage runs them."""

    def __init__(
        self,
        model: Model,
        inputs: Mapping[str, Tensor],
        rows: int,
        device: torch.device | str,
        *,
        coupled: bool = False,
    ) -> None:
        self._coupled = coupled  # as a stage whose replicas compute their BatchNorms together
        self._model = model
        self._device = device
        self._graph = model.captured.module.graph
        self._order = [*(n for n in self._graph.nodes if n in model.free), *(n for a in model.atom_nodes for n in a)]
        self._last_use = {source: node for node in self._order for source in node.all_input_nodes}
        self._values = self._given_values(inputs, rows)
        self._weights = self._weights_by_use()
        given = [*tensors_in(list(self._values.values())), *self._weights.values()]
        self._live = LiveMemory([*given, *(t.grad for t in given if t.grad is not None)])
        (output,) = self._graph.find_nodes(op="output")
        (self._loss_node,) = output.all_input_nodes
        self._saved = [0.0] * len(model.graph.atoms)
        self._weight_inputs = [0.0] * len(model.graph.atoms)
        self._saver: dict[int, int] = {}
        self._awaited: set[int] = set()
        self._memory_of: dict[str, int | None] = {}
        self._uses: dict[str, list[GradientMemory]] = {value.name: [] for value in model.graph.values}
        self._totals: dict[str, GradientMemory] = {}
        self._atom: int | None = None

    def _given_values(self, inputs: Mapping[str, Tensor], rows: int) -> dict[fx.Node, Any]:
        """The batch, parameters and buffers."""
        values: dict[fx.Node, Any] = {}
        for node in self._graph.nodes:
            if node.op == "placeholder":
                values[node] = inputs.get(node.name, rows)
            elif node.op == "get_attr":
                values[node] = attribute(self._model, node, self._device)
        return values

    def _weights_by_use(self) -> dict[tuple[str, int | None], Tensor]:
        """A trained parameter once per atom that uses it, since these may lie in several stages.

        Each has a gradient already, as in a step: those of this micro-batch are added to it.
        """
        weights: dict[tuple[str, int | None], Tensor] = {}
        for node in self._order:
            for source in node.all_input_nodes:
                key = (str(source.target), self._model.atom_of.get(node))
                if source.op == "get_attr" and source in self._model.needs_gradient and key not in weights:
                    weights[key] = weight = self._values[source].detach().requires_grad_()
                    weight.grad = torch.zeros_like(weight)
        return weights

    def run(self) -> _Recorded:
        starts: list[int] = []
        made_by: list[int | None] = []
        with self._live, torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor):
            for node in self._order:
                self._atom = self._model.atom_of.get(node)
                starts.append(torch._C._autograd._get_sequence_nr())
                made_by.append(self._atom)
                self._live.at = ("forward", self._atom)
                self._live.note()
                self._run_node(node)
            loss = self._values.pop(self._loss_node)
            with self._live.backward_of(starts, made_by):
                loss.backward()
        before, forward, backward = 0.0, [], []
        for atom, saved in enumerate(self._saved):
            forward.append(self._live.most.get(("forward", atom), before) - before)
            backward.append(self._live.most.get(("backward", atom), before) - before)
            before += saved
        return _Recorded(forward, backward, self._weight_inputs, tuple(self._saved), self._value_memory())

    def _run_node(self, node: fx.Node) -> None:
        values, device = self._values, torch.device(self._device)

        def take(source: fx.Node) -> Any:
            if source.op == "get_attr":
                return self._weights.get((str(source.target), self._atom), values[source])
            return self._watched(source, values[source])

        args = move_arguments(fx.map_arg(node.args, take), device)
        kwargs = dict(move_arguments(fx.map_arg(node.kwargs, take), device))
        target, args = runnable(node.target, args, device)
        if self._coupled and is_training_batch_norm(node):
            target, args = batch_norm_over_replicas, (_Alone(), *args[:5], *args[6:8])
        values[node] = result = target(*args, **kwargs)
        if isinstance(result, Tensor):
            self._memory_of[node.name] = self._live.number(result)
            self._watch_total(node.name, result)
        if self._atom is not None and deferrable(node, lambda source: comes_in_time(self._model, source)):
            self._put_off(self._atom, [values[source] for source in node.all_input_nodes], result)
        del args, kwargs, result
        for source in node.all_input_nodes:
            if source.op == "call_function" and self._last_use[source] is node and source is not self._loss_node:
                del values[source]

    def _watched(self, source: fx.Node, value: Any) -> Any:
        """What an atom is given of another's value, so that the gradient it gives back is seen."""
        atom, uses = self._atom, self._uses.get(source.name)
        if atom is None or atom == self._model.atom_of.get(source) or uses is None or not _has_gradient(value):
            return value
        given = torch.ops.aten.alias.default(value)
        given.register_hook(lambda gradient: uses.append(self._seen(atom, gradient)))
        return given

    def _watch_total(self, name: str, value: Any) -> None:
        atom = self._atom
        if atom is not None and name in self._uses and _has_gradient(value):
            value.register_hook(lambda gradient: self._totals.update({name: self._seen(atom, gradient)}))

    def _seen(self, user: int, gradient: Tensor) -> GradientMemory:
        number = self._live.number(gradient)
        spread = gradient.untyped_storage().nbytes() / max(gradient.nbytes, 1)
        return GradientMemory(user, -1 if number is None else number, user, spread)

    def _put_off(self, atom: int, given: list[Any], result: Any) -> None:
        """What a weight's gradient is made of is kept until then: the gradient of the result and what came in."""
        self._weight_inputs[atom] += sum(tensor.nbytes for tensor in tensors_in(result))
        for tensor in tensors_in(given):
            number = self._live.number(tensor)
            if number is not None and number not in self._awaited:
                self._awaited.add(number)
                self._weight_inputs[atom] += tensor.untyped_storage().nbytes()

    def _save(self, tensor: Tensor) -> Tensor:
        number = self._live.number(tensor)
        if number is not None and number not in self._saver and self._atom is not None:
            self._saver[number] = self._atom
            self._saved[self._atom] += tensor.untyped_storage().nbytes()
        return tensor

    def _value_memory(self) -> dict[str, ValueMemory]:
        found = {}
        for value in self._model.graph.values:
            number = self._memory_of.get(value.name)
            saver = ALWAYS_HELD if number is None else self._saver.get(number, NEVER_SAVED)
            _, last = self._live.gone.get(number, ("", None)) if number is not None else ("", None)
            total = self._totals.get(value.name)
            found[value.name] = ValueMemory(
                saver=saver,
                last=value.consumers[-1] if last is None else last,
                gradients=tuple(map(self._with_end, self._uses[value.name])),
                total=None if total is None else self._with_end(total),
            )
        return found

    def _with_end(self, gradient: GradientMemory) -> GradientMemory:
        _, atom = self._live.gone.get(gradient.memory, ("", None))
        return gradient if atom is None else gradient._replace(until=atom)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


class _Alone:
    """A replica without others."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [torch.empty_like(tensor).copy_(tensor)]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor.clone()
