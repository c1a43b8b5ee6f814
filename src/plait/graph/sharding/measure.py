"""What sharing a stretch of the chain takes: its exchanges, and how much a device computes and keeps. As data."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from plait.graph.build import Model, module_path
from plait.graph.graph import ITEM_BYTES
from plait.graph.layouts import ROWS, for_many_rows
from plait.graph.randomness import called
from plait.graph.sharding.decision import Decision, Exchange
from plait.graph.sharding.layout import COPIED, WHOLE, Layout, Partial, Split, own_cells
from plait.graph.sharding.propagate import Propagation, Stretch, propagate
from plait.graph.sharding.sharding import Collective, Sharding

_PRODUCTS = {"linear", "addmm", "mm", "bmm", "matmul", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention"}
_VIEWS = {
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "permute", "transpose", "t", "numpy_T", "select",
    "unbind", "split", "split_with_sizes", "chunk", "slice", "expand", "unsqueeze", "squeeze", "getitem",
}  # fmt: skip


def sharding_of(model: Model, start: int, end: int, degree: int, split: Mapping[str, int]) -> Sharding:
    """How `degree` devices that split these parameters share atoms `start..end-1`."""
    stretch = Stretch.of(model, start, end)
    found = propagate(stretch, split, degree)
    work, kept = _Shares(model, start, end), _Shares(model, start, end)
    for node in stretch.nodes:
        decision = found.decisions.get(node, Decision())
        work.add(node, operations(node), work_share(decision, degree))
        kept.add(node, _kept_bytes(node), _layout_share(decision.gives, degree))
    return Sharding(
        start,
        end,
        degree,
        {name: part.dim for name, part in found.parameters.items()},
        tuple(_collectives(stretch, found, start, end)),
        work.per_atom(),
        kept.per_atom(),
        {_place(model, name): why for name, why in found.whole.items()},
    )


class _Shares:
    """Per atom the part of some amount that a device has."""

    def __init__(self, model: Model, start: int, end: int) -> None:
        self._atom_of, self._start = model.atom_of, start
        self._all = [0.0] * (end - start)
        self._own = [0.0] * (end - start)

    def add(self, node: fx.Node, amount: float, share: float) -> None:
        self._all[self._atom_of[node] - self._start] += amount
        self._own[self._atom_of[node] - self._start] += amount * share

    def per_atom(self) -> tuple[float, ...]:
        return tuple(own / whole if whole else 1.0 for own, whole in zip(self._own, self._all, strict=True))


def _collectives(stretch: Stretch, found: Propagation, start: int, end: int) -> Iterator[Collective]:
    model = stretch.model
    known: set[tuple[fx.Node, Layout]] = set()
    for node in stretch.nodes:
        atom = model.atom_of[node]
        decision = found.decisions.get(node, Decision())
        for source in node.all_input_nodes:
            wanted = decision.needs.get(source, WHOLE)
            for step in steps(source, found.layout(source), wanted, known, model.needs_gradient):
                yield _collective(atom, step)
        for step in own_exchanges(node, decision):
            yield _collective(atom, step)
    for name in crossing(model, start, end):
        node = model.node_by_name[name]
        for step in steps(node, found.layout(node), WHOLE, known, model.needs_gradient):
            yield _collective(model.atom_of[node], step)


def crossing(model: Model, start: int, end: int) -> Iterable[str]:
    """What must be whole besides what a node reads whole: values for other stages, and the loss."""
    yield from (v.name for v in model.graph.values if start <= v.producer < end and v.consumers[-1] >= end)
    if end == len(model.graph.atoms):
        (output,) = model.captured.module.graph.find_nodes(op="output")
        yield from (node.name for node in output.all_input_nodes)


@dataclass(frozen=True)
class Step:
    """An exchange of a tensor, whose sizes are given for many rows or for none."""

    kind: str
    phase: str
    num_bytes: float
    grows: bool

    def bytes_for(self, rows: int) -> float:
        return self.num_bytes * rows / ROWS if self.grows else self.num_bytes


def steps(
    node: fx.Node, own: Layout, wanted: Layout, known: set[tuple[fx.Node, Layout]], needs_gradient: frozenset[fx.Node]
) -> Iterator[Step]:
    """The exchanges that bring a tensor into a layout it was not in before; `known` has those it was in."""
    if own == wanted or isinstance(node.meta.get("val"), (tuple, list)):
        return
    if own != WHOLE and (node, WHOLE) not in known:
        known.add((node, WHOLE))
        yield _step("all-gather" if isinstance(own, Split) else "all-reduce", "forward", node)
    key = (node, wanted)
    if key in known:
        return
    known.add(key)
    if wanted == COPIED and node in needs_gradient:
        yield _step("all-reduce", "backward", node)
    elif isinstance(wanted, Split) and node in needs_gradient:
        yield _step("all-gather", "backward", node)


def own_exchanges(node: fx.Node, decision: Decision) -> Iterator[Step]:
    if decision.bias is not None:
        yield _step("all-reduce", "forward", node)
    for exchange in decision.exchanges:
        yield _exchange_step(exchange)


def _step(kind: str, phase: str, node: fx.Node) -> Step:
    num_bytes, grows = tensor_bytes(node)
    return Step(kind, phase, num_bytes, grows)


def _exchange_step(exchange: Exchange) -> Step:
    size = prod(exchange.shape)
    return Step(exchange.kind, exchange.phase, size * exchange.bytes_each, size % ROWS == 0)


def _collective(atom: int, step: Step) -> Collective:
    per_row = step.num_bytes / ROWS if step.grows else 0.0
    return Collective(atom, step.kind, step.phase, per_row, 0.0 if step.grows else step.num_bytes)


def tensor_bytes(node: fx.Node) -> tuple[float, bool]:
    """For many rows, and whether it grows with them."""
    value: Any = node.meta.get("val")
    if not isinstance(value, Tensor):
        return 0.0, False
    grows = any(isinstance(size, torch.SymInt) for size in value.shape)
    count = prod(for_many_rows(size) for size in value.shape)
    return float(count * ITEM_BYTES[str(value.dtype).removeprefix("torch.")]), grows


def _kept_bytes(node: fx.Node) -> float:
    return 0.0 if _name(node) in _VIEWS else tensor_bytes(node)[0]


def operations(node: fx.Node) -> float:
    """About what a node's forward computes, for many rows: two per product, one per element, nothing for a view."""
    name = _name(node)
    value: Any = node.meta.get("val")
    if name in _VIEWS or not isinstance(value, Tensor):
        return 0.0
    elements = prod(for_many_rows(size) for size in value.shape)
    if name not in _PRODUCTS:
        return float(elements)
    tensors = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    shapes = [tuple(for_many_rows(size) for size in tensor.shape) for tensor in tensors]
    if name == "scaled_dot_product_attention":
        return 4.0 * elements * shapes[1][-2]
    if name.startswith("conv"):
        return 2.0 * elements * prod(shapes[1][1:])
    contracted = shapes[1][-1] if name == "addmm" else shapes[0][-1]
    return 2.0 * elements * contracted


def work_share(decision: Decision, degree: int) -> float:
    """The part of a node's work that the busiest device has."""
    if not decision.shares_work:
        return 1.0
    if any(isinstance(layout, Partial) for layout in _layouts(decision.gives)) or decision.bias is not None:
        return min((_part(need, degree) for need in decision.needs.values()), default=1.0)
    return _layout_share(decision.gives, degree)


def _layout_share(gives: Layout | tuple[Layout, ...], degree: int) -> float:
    return max((_part(layout, degree) for layout in _layouts(gives)), default=1.0)


def _layouts(gives: Layout | tuple[Layout, ...]) -> tuple[Layout, ...]:
    return gives if isinstance(gives, tuple) else (gives,)


def _part(layout: Layout, degree: int) -> float:
    return own_cells(layout.cells, degree, 0)[1] / layout.cells if isinstance(layout, Split) else 1.0


def _name(node: fx.Node) -> str:
    target, _ = called(node)
    return str(getattr(target, "_opname", getattr(target, "__name__", "")))


def _place(model: Model, name: str) -> str:
    node = model.node_by_name.get(name)
    module = module_path(node) if node is not None else ""
    return f"{module}.{name}" if module else name
