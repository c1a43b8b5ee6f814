"""Measured costs: seconds of every node on the device at hand, at two sizes of micro-batch.

Nodes are timed one by one, forward and backward, and of those that compute alike only the first; the sums are then
scaled to what the whole graph takes in one piece, because a node alone pays for being timed alone. The two sizes
give fixed and per-row parts.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from plait.cost.clock import now
from plait.cost.costs import AtomCost, Costs, OptimizerCost
from plait.cost.recording import record_memory
from plait.cost.walk import NodeRun, batch_inputs, walk
from plait.graph import Model
from plait.graph.cut import cut
from plait.graph.stage import build_stage, place_stage


@dataclass(frozen=True)
class _Times:
    """Of a node, and of all that compute alike; or of an atom."""

    forward: float
    backward: float
    weight: float  # the part of the backward that can be put off


@dataclass(frozen=True)
class _Sample(_Times):
    saved: float


def measure_costs(
    model: Model,
    batch: Any,
    *,
    kind: str,
    rows: tuple[int, int],
    optimizer: OptimizerCost,
    device: torch.device | str = "cpu",
    repeats: int = 5,
) -> Costs:
    """Costs of `model`'s atoms on `device` under the name `kind`, fitted between `rows[0]` and `rows[1]`."""
    low, high = rows
    inputs = {size: batch_inputs(model, batch, size, device) for size in {low, high}}
    alone = {size: _atoms_alone(model, inputs[size], size, device, repeats) for size in inputs}
    whole = _in_one_piece(model, inputs, device, 4 * repeats)
    memory = record_memory(model, inputs, device)
    samples = {size: _scaled(alone[size], *whole[size], memory.saved[size]) for size in inputs}
    atoms = [_fit(low, high, samples[low][i], samples[high][i]) for i in range(len(model.graph.atoms))]
    return Costs(
        model.graph.fingerprint,
        {kind: tuple(atoms)},
        {kind: optimizer},
        {kind: "measured"},
        {kind: memory.profile},
    )


def _fit(low: int, high: int, a: _Sample, b: _Sample) -> AtomCost:
    def line(x: float, y: float) -> tuple[float, float]:
        # Noise must not make a cost shrink with the rows, nor be negative without any.
        slope = max((y - x) / (high - low), 0.0) if high > low else y / high
        fixed = max(y - slope * high, 0.0)
        return fixed, (y - fixed) / high

    return AtomCost(
        *line(a.forward, b.forward),
        *line(a.backward, b.backward),
        *line(a.saved, b.saved),
        *line(a.weight, b.weight),
    )


def _atoms_alone(
    model: Model, inputs: Mapping[str, Tensor], rows: int, device: torch.device | str, repeats: int
) -> list[_Times]:
    nodes: dict[str, _Times] = {}
    known: dict[Hashable, _Times] = {}
    for run in walk(model, inputs, rows, device):
        if run.alike in known:
            run.forward()
        else:
            known[run.alike] = _timed(run, repeats, device)
        nodes[run.node.name] = known[run.alike]
    return [_total(nodes, atom.nodes) for atom in model.graph.atoms]


def _timed(run: NodeRun, repeats: int, device: torch.device | str) -> _Times:
    """The first run, which is not timed, warms up."""
    run.there_and_back()
    forward = _seconds(run.forward, repeats, device)
    backward = max(_seconds(run.there_and_back, repeats, device) - forward, 0.0)
    if run.weight_backward is None:
        weight = 0.0
    elif run.weights_alone:
        weight = backward
    else:
        weight = min(max(_seconds(run.there_and_to_weights, repeats, device) - forward, 0.0), backward)
    return _Times(forward, backward, weight)


def _total(nodes: Mapping[str, _Times], names: tuple[str, ...]) -> _Times:
    parts = [nodes[name] for name in names]
    return _Times(sum(p.forward for p in parts), sum(p.backward for p in parts), sum(p.weight for p in parts))


def _in_one_piece(
    model: Model, inputs: Mapping[int, Mapping[str, Tensor]], device: torch.device | str, repeats: int
) -> dict[int, tuple[float, float]]:
    """Seconds forward and backward of the whole graph, by rows.

    The sizes take turns: a machine that slows down meanwhile must not look like a cost of more rows.
    """
    (whole,) = cut(model.graph, [])
    stage = build_stage(model, whole)
    home = next((p.device for p in stage.module.parameters()), torch.device("cpu"))
    place_stage(stage, torch.device(device))
    buffers = {name: buffer.clone() for name, buffer in stage.named_buffers().items()}
    times: dict[int, list[tuple[float, float]]] = {rows: [] for rows in inputs}
    for _ in range(repeats + 1):
        for rows, tensors in inputs.items():
            start = now(device)
            (loss,) = stage.module(rows, *[tensors[name] for name in stage.inputs])
            middle = now(device)
            loss.backward()  # gradients add up from the second time on, as over micro-batches
            times[rows].append((middle - start, now(device) - middle))
    for parameter in stage.named_parameters().values():
        parameter.grad = None
    for name, buffer in stage.named_buffers().items():
        buffer.copy_(buffers[name])
    place_stage(stage, home)  # its tensors are the model's own
    # Means, not medians: a step is the sum of its micro-batches, those that were held up among them.
    return {rows: (mean(f for f, _ in took[1:]), mean(b for _, b in took[1:])) for rows, took in times.items()}


def _scaled(
    atoms: list[_Times], forward_seconds: float, backward_seconds: float, saved: Sequence[float]
) -> list[_Sample]:
    """The atoms, so that the sums of their times are what the whole graph takes."""
    forward = forward_seconds / max(sum(a.forward for a in atoms), 1e-12)
    backward = backward_seconds / max(sum(a.backward for a in atoms), 1e-12)
    return [
        _Sample(a.forward * forward, a.backward * backward, a.weight * backward, num_bytes)
        for a, num_bytes in zip(atoms, saved, strict=True)
    ]


def _seconds(run: Callable[[], Any], repeats: int, device: torch.device | str) -> float:
    times = []
    for _ in range(repeats):
        start = now(device)
        run()
        times.append(now(device) - start)
    return min(times)
