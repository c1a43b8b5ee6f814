"""Computed costs for devices not at hand: floating-point operations and bytes against a device's rates.

A node takes the longer of its arithmetic at `efficiency` of the device's peak and its memory traffic at
the same share of the bandwidth. Everything runs on the `meta` device, so a model of any size is costed
on a laptop; the efficiency is a stated assumption of the device kind, not a measurement.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx.experimental._config
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch.utils.flop_counter import FlopCounterMode

from plait.cost.costs import AtomCost, Costs, OptimizerCost
from plait.cost.outputs import Outputs
from plait.cost.recording import record_memory
from plait.cost.stand_ins import is_attention
from plait.cost.tensors import tensors_in
from plait.cost.walk import NodeRun, batch_inputs, walk
from plait.errors import PlaitError
from plait.graph import Model
from plait.graph.build import module_path
from plait.graph.randomness import called, operator_of

_ROWS = (2, 4)  # two sizes give the fixed and the per-row part exactly, since nothing is noisy here


class Rates(Protocol):
    """What a kind of device offers; `plait.cluster.DeviceKind` has these."""

    @property
    def name(self) -> str: ...
    @property
    def flops_per_second(self) -> float: ...
    @property
    def memory_bandwidth(self) -> float: ...
    @property
    def efficiency(self) -> float: ...


@dataclass(frozen=True)
class _NodeWork:
    """Of one node, and of all that compute alike: operations and bytes moved, forward and backward."""

    forward: tuple[float, float]
    backward: tuple[float, float]
    weight: tuple[float, float]  # of the backward, what can be put off
    outputs: Outputs


class _Work:
    """Operations and bytes of one atom, forward and backward."""

    def __init__(self) -> None:
        self.forward: list[tuple[float, float]] = []
        self.backward: list[tuple[float, float]] = []
        self.weight: list[tuple[float, float]] = []


def analytic_costs(
    model: Model, batch: Any, *, kinds: list[Rates], state_bytes_per_byte: float, step_bytes_per_byte: float = 0.0
) -> Costs:
    """Costs of `model` on every one of `kinds`, computed."""
    # How many entries a mask keeps is only known while running: all of them, at most.
    with torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[attr-defined]
        inputs = {rows: _inputs(model, batch, rows) for rows in _ROWS}
        works = [_work(model, inputs[rows], rows) for rows in _ROWS]
        memory = record_memory(model, inputs, "meta")
    samples = list(zip(*works, *(memory.saved[rows] for rows in _ROWS), strict=True))
    atoms = {kind.name: tuple(_cost(kind, *sample) for sample in samples) for kind in kinds}
    optimizer = {kind.name: computed_optimizer(kind, state_bytes_per_byte, step_bytes_per_byte) for kind in kinds}
    source = {kind.name: f"computed at {kind.efficiency:.0%} of peak" for kind in kinds}
    return Costs(model.graph.fingerprint, atoms, optimizer, source, {kind.name: memory.profile for kind in kinds})


def computed_optimizer(kind: Rates, state_bytes_per_byte: float, step_bytes_per_byte: float = 0.0) -> OptimizerCost:
    """A step reads parameter, gradient and state and writes parameter and state."""
    traffic = 3 + 2 * state_bytes_per_byte
    return OptimizerCost(
        state_bytes_per_byte=state_bytes_per_byte,
        seconds_per_byte=traffic / (kind.memory_bandwidth * kind.efficiency),
        seconds_fixed=0.0,
        step_bytes_per_byte=step_bytes_per_byte,
    )


def _cost(kind: Rates, low: _Work, high: _Work, *saved: float) -> AtomCost:
    def seconds(parts: list[tuple[float, float]]) -> float:
        flops, bandwidth = kind.flops_per_second * kind.efficiency, kind.memory_bandwidth * kind.efficiency
        return sum(max(operations / flops, moved / bandwidth) for operations, moved in parts)

    def line(x: float, y: float) -> tuple[float, float]:
        slope = (y - x) / (_ROWS[1] - _ROWS[0])
        fixed = max(y - slope * _ROWS[1], 0.0)
        return fixed, (y - fixed) / _ROWS[1]

    return AtomCost(
        *line(seconds(low.forward), seconds(high.forward)),
        *line(seconds(low.backward), seconds(high.backward)),
        *line(*saved),
        *line(seconds(low.weight), seconds(high.weight)),
    )


def _inputs(model: Model, batch: Any, rows: int) -> dict[str, Tensor]:
    return batch_inputs(model, pytree.tree_map_only(Tensor, lambda t: t.to("meta"), batch), rows, "meta")


def _work(model: Model, inputs: Mapping[str, Tensor], rows: int) -> list[_Work]:
    atom_of = {name: index for index, atom in enumerate(model.graph.atoms) for name in atom.nodes}
    work = [_Work() for _ in model.graph.atoms]
    known: dict[Hashable, _NodeWork] = {}
    for run in walk(model, inputs, rows, "meta"):
        _run(run, known)
        node = known[run.alike]
        index = atom_of.get(run.node.name)
        if index is None:
            continue
        work[index].forward.append(node.forward)
        if run.node in model.needs_gradient:
            work[index].backward.append(node.backward)
            work[index].weight.append(node.weight)
    return work


def _run(run: NodeRun, known: dict[Hashable, _NodeWork]) -> None:
    """Runs a node; `known` then holds its work, found only for the first of those alike."""
    try:
        if run.alike not in known:
            known[run.alike] = _count(run)
        elif (made := known[run.alike].outputs).can_be_made:
            run.keep(made.like(run.given))
        else:
            run.forward()
    except (NotImplementedError, RuntimeError) as error:
        raise PlaitError(
            f"the cost of {run.node.name} in {module_path(run.node) or 'the model'} cannot be computed without "
            f"running it ({str(error).splitlines()[0][:120]}). Plan for local:N, where costs are measured."
        ) from error


def _count(run: NodeRun) -> _NodeWork:
    with FlopCounterMode(display=False) as counter:
        outputs = run.forward()
    forward = float(counter.get_total_flops())
    if is_attention(called(run.node)[0]):  # its stand-in computes nothing
        forward = _attention_flops(run.inputs)
        backward = 2.5 * forward
    else:
        with FlopCounterMode(display=False) as counter:
            run.backward(outputs)
        backward = counter.get_total_flops()
    moved = 0.0 if _only_a_view(run.node) else _bytes(run.inputs) + _bytes(run.parameters) + _bytes(outputs)
    return _NodeWork(
        forward=(forward, moved),
        backward=(backward, 2 * moved),
        weight=_put_off(run, (backward, 2 * moved), moved),
        outputs=Outputs(outputs, run.given),
    )


def _put_off(run: NodeRun, backward: tuple[float, float], moved: float) -> tuple[float, float]:
    """Gradients of weights alone: they read what came in and the gradient of what went out."""
    if run.weight_backward is None:
        return 0.0, 0.0
    if run.weights_alone:
        return backward
    outputs = run.forward()
    with FlopCounterMode(display=False) as counter:
        run.weight_backward(outputs)
    return counter.get_total_flops(), moved


def _attention_flops(inputs: tuple[Tensor, ...]) -> float:
    query, key, value = inputs[:3]
    return 2.0 * query.numel() * key.shape[-2] + 2.0 * query.shape[:-1].numel() * key.shape[-2] * value.shape[-1]


def _only_a_view(node: fx.Node) -> bool:
    function = operator_of(node)
    returns = function._schema.returns if function is not None else []
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _bytes(values: Any) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors_in(values)))
