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
from plait.cost.memory import ALWAYS_HELD, NEVER_SAVED, AtomMemory, MemoryProfile
from plait.cost.saved import tensors_in
from plait.cost.stand_ins import runnable
from plait.cost.walk import attribute
from plait.graph import Model
from plait.graph.devices import move_arguments


def memory_profile(
    model: Model, inputs: Mapping[int, Mapping[str, Tensor]], device: torch.device | str
) -> MemoryProfile:
    """The profile of `model` on `device`, fitted between the least and the most rows of `inputs`."""
    low, high = min(inputs), max(inputs)
    few, many = (_Recording(model, inputs[rows], rows, device).run() for rows in (low, high))

    def line(x: float, y: float) -> tuple[float, float]:
        slope = (y - x) / (high - low) if high > low else y / high
        return y - slope * high, slope

    atoms = [
        AtomMemory(*line(f, g), *line(b, c), *line(v, w))
        for f, g, b, c, v, w in zip(
            few.forward, many.forward, few.backward, many.backward, few.weight_inputs, many.weight_inputs, strict=True
        )
    ]
    return MemoryProfile(tuple(atoms), many.savers)


@dataclass(frozen=True)
class _Recorded:
    forward: list[float]
    backward: list[float]
    weight_inputs: list[float]
    savers: dict[str, int]
    saved: list[float]


class _Recording:
    """One run of the model's atoms in their order, what is free of them first, as a stage runs them."""

    def __init__(self, model: Model, inputs: Mapping[str, Tensor], rows: int, device: torch.device | str) -> None:
        self._model = model
        self._device = device
        self._graph = model.captured.module.graph
        self._order = [*(n for n in self._graph.nodes if n in model.free), *(n for a in model.atom_nodes for n in a)]
        self._last_use = {source: node for node in self._order for source in node.all_input_nodes}
        self._values = self._given_values(inputs, rows)
        tensors = tensors_in(list(self._values.values()))
        self._parameters = {id(tensor) for tensor in tensors if tensor.requires_grad}
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.grad = torch.zeros_like(tensor)  # as in a step: gradients are added to those of others
        self._live = LiveMemory([*tensors, *(t.grad for t in tensors if t.grad is not None)])
        (output,) = self._graph.find_nodes(op="output")
        (self._loss_node,) = output.all_input_nodes
        self._saved = [0.0] * len(model.graph.atoms)
        self._weight_inputs = [0.0] * len(model.graph.atoms)
        self._saver: dict[int, int] = {}
        self._memory_of: dict[str, int | None] = {}
        self._atom: int | None = None

    def _given_values(self, inputs: Mapping[str, Tensor], rows: int) -> dict[fx.Node, Any]:
        """The batch, and every parameter once."""
        held: dict[str, Any] = {}
        values: dict[fx.Node, Any] = {}
        for node in self._graph.nodes:
            if node.op == "placeholder":
                values[node] = inputs.get(node.name, rows)
            elif node.op == "get_attr":
                name = str(node.target)
                if name not in held:
                    held[name] = attribute(self._model, node, self._device)
                    if isinstance(held[name], Tensor) and node in self._model.needs_gradient:
                        held[name].requires_grad_()
                values[node] = held[name]
        return values

    def run(self) -> _Recorded:
        starts: list[int] = []
        made_by: list[int | None] = []
        with self._live, torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor):
            for node in self._order:
                self._atom = self._model.atom_of.get(node)
                starts.append(torch._C._autograd._get_sequence_nr())  # type: ignore[attr-defined]
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
        return _Recorded(forward, backward, self._weight_inputs, self._savers(), self._saved)

    def _run_node(self, node: fx.Node) -> None:
        values, device = self._values, torch.device(self._device)
        args = move_arguments(fx.map_arg(node.args, lambda n: values[n]), device)
        kwargs = dict(move_arguments(fx.map_arg(node.kwargs, lambda n: values[n]), device))
        target, args = runnable(node.target, args, device)
        values[node] = result = target(*args, **kwargs)
        made = tensors_in(result)
        if isinstance(result, Tensor):
            self._memory_of[node.name] = self._live.number(result)
        if self._atom is not None and any(id(values[n]) in self._parameters for n in node.all_input_nodes):
            self._weight_inputs[self._atom] += sum(t.nbytes for t in made if t.requires_grad)
        del args, kwargs, result, made
        for source in node.all_input_nodes:
            if source.op == "call_function" and self._last_use[source] is node and source is not self._loss_node:
                del values[source]

    def _save(self, tensor: Tensor) -> Tensor:
        number = self._live.number(tensor)
        if number is not None and number not in self._saver and self._atom is not None:
            self._saver[number] = self._atom
            self._saved[self._atom] += tensor.untyped_storage().nbytes()
        return tensor

    def _savers(self) -> dict[str, int]:
        return {
            value.name: ALWAYS_HELD if number is None else self._saver.get(number, NEVER_SAVED)
            for value in self._model.graph.values
            for number in [self._memory_of.get(value.name)]
        }
