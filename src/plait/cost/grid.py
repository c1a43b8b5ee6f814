"""What model and batch parallelism move on a P_r x P_c grid of processes (S2; algorithms.md, section 4).

P_r processes share each layer, P_c share the batch of B rows. A layer with |W| weights, d_in numbers in and d_out
numbers out for each row takes, in words of one process and the seconds alpha and beta of a message and a word,

    alpha log P_r + beta (B/P_c) (P_r-1)/P_r d_out            its outputs put together                 (forward)
    2 [alpha log P_r + beta (B/P_c) (P_r-1)/P_r d_in]         gradients of its inputs summed, but for the first layer
    2 [alpha log P_c + beta (P_c-1)/P_c |W|/P_r]              gradients of its weights summed

1 x P is pure batch, P x 1 pure model parallelism. Where layers have grids of their own, a layer on P_r' > P_r of them
needs more rows than the one before it left there, and gives back the gradients of as many (`_moved`):

    2 [alpha log (P_r'/P_r) + beta (B/P_c') (1 - P_r/P_r') d_in]

and as much from a wide grid to a narrow one, on the way back and with that grid's rows. The best grid per layer is a
shortest path over the layers (`best_per_layer`), O(layers x grids^2). Layers that nobody splits stay batch parallel.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from plait.graph.layers import Layer


class Grid(NamedTuple):
    """`model` is P_r, `batch` is P_c."""

    model: int
    batch: int

    def __str__(self) -> str:
        return f"{self.model}x{self.batch}"


@dataclass(frozen=True)
class Wire:
    """Seconds of a message whatever its size, and of each word in it."""

    alpha: float
    beta: float


class Traffic(NamedTuple):
    """`messages` count log P for every collective of P processes."""

    messages: float
    words: float

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(self.messages + other.messages, self.words + other.words)

    def seconds(self, wire: Wire) -> float:
        return wire.alpha * self.messages + wire.beta * self.words


_NOTHING = Traffic(0.0, 0.0)


@dataclass(frozen=True)
class Choice:
    """A grid for each layer, and what that moves."""

    grids: tuple[Grid, ...]
    traffic: Traffic

    def seconds(self, wire: Wire) -> float:
        return self.traffic.seconds(wire)


def grids_of(processes: int, batch: int) -> list[Grid]:
    """Every P_r x P_c of them in which all have a row."""
    return [
        Grid(model, processes // model)
        for model in range(1, processes + 1)
        if processes % model == 0 and processes // model <= batch
    ]


def prefers_model(layer: Layer, batch: int) -> bool:
    """Does a layer by itself move less when its weights are split than when the batch is?"""
    return 3 * batch * layer.outputs < 2 * layer.weights


def on_one_grid(layers: Sequence[Layer], grid: Grid, batch: int) -> Choice:
    """Every layer on the same grid."""
    return Choice((grid,) * len(layers), _total(_of_layer(layer, grid, batch) for layer in layers))


def best_uniform(layers: Sequence[Layer], processes: int, batch: int, wire: Wire) -> Choice:
    """
    >>> wide = Layer("wide", "dense", weights=1000, inputs=10, outputs=10, needs_input_gradient=False)
    >>> str(best_uniform([wide], 4, batch=8, wire=Wire(0.0, 1.0)).grids[0])
    '4x1'
    """
    grids = grids_of(processes, batch)
    return min((on_one_grid(layers, grid, batch) for grid in grids), key=lambda choice: choice.seconds(wire))


def best_dense(layers: Sequence[Layer], processes: int, batch: int, wire: Wire) -> Choice:
    """Convolutions batch parallel, everything else on the best grid; what passes between the two is not charged."""
    flat = Grid(1, processes)

    def choice(grid: Grid) -> Choice:
        own: list[Grid] = []
        for layer in layers:
            before = own[-1] if own else flat
            own.append({"convolution": flat, "other": before}.get(layer.kind, grid))
        return Choice(tuple(own), _total(_of_layer(layer, at, batch) for layer, at in zip(layers, own, strict=True)))

    return min(map(choice, grids_of(processes, batch)), key=lambda found: found.seconds(wire))


def best_per_layer(layers: Sequence[Layer], processes: int, batch: int, wire: Wire) -> Choice:
    """A grid for each layer, with what passes between layers on different grids charged."""
    grids = grids_of(processes, batch)
    best = {grid: Choice((grid,), _of_layer(layers[0], grid, batch)) for grid in grids}
    for layer in layers[1:]:
        own = {grid: _of_layer(layer, grid, batch) for grid in grids}
        best = {
            grid: min(
                (
                    Choice((*c.grids, grid), c.traffic.plus(_moved(layer, c.grids[-1], grid, batch)).plus(own[grid]))
                    for c in best.values()
                ),
                key=lambda choice: choice.seconds(wire),
            )
            for grid in grids
        }
    return min(best.values(), key=lambda choice: choice.seconds(wire))


def charged(layers: Sequence[Layer], choice: Choice, batch: int) -> Traffic:
    """What a choice moves with what passes between its grids."""
    between = [
        _moved(layer, before, after, batch)
        for layer, (before, after) in zip(layers[1:], pairwise(choice.grids), strict=True)
    ]
    return _total(
        [*(_of_layer(layer, grid, batch) for layer, grid in zip(layers, choice.grids, strict=True)), *between]
    )


def _of_layer(layer: Layer, grid: Grid, batch: int) -> Traffic:
    if layer.kind == "other":
        whole = grid.model * grid.batch
        return _sum_of(whole, layer.weights)
    rows, part = batch / grid.batch, (grid.model - 1) / grid.model
    activations = Traffic(math.log2(grid.model), rows * part * layer.outputs)
    if layer.needs_input_gradient:
        activations = activations.plus(Traffic(2 * math.log2(grid.model), 2 * rows * part * layer.inputs))
    return activations.plus(_sum_of(grid.batch, layer.weights / grid.model))


def _sum_of(processes: int, words: float) -> Traffic:
    return Traffic(2 * math.log2(processes), 2 * (processes - 1) / processes * words)


def _moved(layer: Layer, before: Grid, after: Grid, batch: int) -> Traffic:
    """Between the grid on which a layer's inputs are and its own."""
    narrow, wide = sorted((before, after))
    ratio = wide.model / narrow.model
    return Traffic(2 * math.log2(ratio), 2 * batch / wide.batch * (1 - 1 / ratio) * layer.inputs)


def _total(parts: Iterable[Traffic]) -> Traffic:
    total = _NOTHING
    for part in parts:
        total = total.plus(part)
    return total
