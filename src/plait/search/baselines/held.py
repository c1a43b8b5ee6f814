"""What the stages of one partition hold and exchange, in bytes: parameters, values received, values sent."""

from dataclasses import dataclass

import numpy as np

from plait.graph import Graph
from plait.search.baselines.blocks import Array, Numbers


@dataclass(frozen=True)
class Held:
    """An entry per stage. `always`: parameters and buffers; `trained`: the part that has gradients."""

    always: Array
    trained: Array
    received_fixed: Array
    received_per_row: Array
    sent_fixed: Array
    sent_per_row: Array
    messages: Numbers  # values received or sent, each once per stage it goes to


@dataclass(frozen=True)
class Uses:
    """Who uses what in a graph, an entry per use: a parameter by an atom, a value by an atom."""

    num_atoms: int
    parameter: Numbers
    parameter_atom: Numbers
    parameter_bytes: Array
    trainable: Array
    value: Numbers
    value_atom: Numbers
    producer: Numbers
    fixed: Array
    per_row: Array


def uses_of(graph: Graph) -> Uses:
    parameter, parameter_atom = _pairs([(index, atom) for index, p in enumerate(graph.parameters) for atom in p.atoms])
    value, value_atom = _pairs([(index, atom) for index, v in enumerate(graph.values) for atom in v.consumers])
    fixed = np.array([float(v.num_bytes(0)) for v in graph.values])
    return Uses(
        num_atoms=len(graph.atoms),
        parameter=parameter,
        parameter_atom=parameter_atom,
        parameter_bytes=np.array([float(p.num_bytes) for p in graph.parameters]),
        trainable=np.array([float(p.trainable) for p in graph.parameters]),
        value=value,
        value_atom=value_atom,
        producer=np.array([v.producer for v in graph.values], dtype=np.int64),
        fixed=fixed,
        per_row=np.array([float(v.num_bytes(1)) for v in graph.values]) - fixed,
    )


def _pairs(found: list[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    first, second = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return first, second


def held_by(uses: Uses, boundaries: tuple[int, ...]) -> Held:
    size = len(boundaries) + 1
    stage_of = np.zeros(uses.num_atoms, dtype=np.int64)
    stage_of[list(boundaries)] = 1
    stage_of = np.cumsum(stage_of)

    def per_stage(stages: Numbers, amount: Array) -> Array:
        return np.bincount(stages, weights=amount, minlength=size).astype(float)

    parameter, holder = np.unique(np.stack([uses.parameter, stage_of[uses.parameter_atom]]), axis=1)
    value, receiver = np.unique(np.stack([uses.value, stage_of[uses.value_atom]]), axis=1)
    sender = stage_of[uses.producer[value]]
    crosses = sender != receiver
    value, sender, receiver = value[crosses], sender[crosses], receiver[crosses]
    size_of = uses.parameter_bytes[parameter]
    return Held(
        always=per_stage(holder, size_of),
        trained=per_stage(holder, size_of * uses.trainable[parameter]),
        received_fixed=per_stage(receiver, uses.fixed[value]),
        received_per_row=per_stage(receiver, uses.per_row[value]),
        sent_fixed=per_stage(sender, uses.fixed[value]),
        sent_per_row=per_stage(sender, uses.per_row[value]),
        messages=np.bincount(receiver, minlength=size) + np.bincount(sender, minlength=size),
    )
