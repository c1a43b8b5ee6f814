"""What becomes of one node when a stage's layers are shared: pure data, the same on every device."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from torch import Tensor, fx

from plait.graph.layouts import for_many_rows
from plait.graph.sharding.layout import COPIED, WHOLE, Layout, Partial, Split


@dataclass(frozen=True)
class OwnSize:
    """In a call's arguments: a device's part of a size of so many cells."""

    size: Any  # a number, or a node that computes it from the rows
    cells: int


class OwnGroup:
    """In a call's arguments: the tensor group."""


GROUP = OwnGroup()


@dataclass(frozen=True)
class Exchange:
    """What a node's own code sends, besides the steps between layouts: elements of a tensor, times `bytes_each`."""

    kind: str
    phase: str
    shape: tuple[int, ...]
    bytes_each: int


@dataclass(frozen=True)
class Decision:
    """How a node is computed: from inputs in the layouts `needs` (whole, where it says nothing), giving `gives`.

    `arguments` replaces arguments by their names, `call` the whole call. A `bias` is added to the sum of what the
    devices have. `why` says what keeps the node whole, where its inputs were not.
    """

    gives: Layout | tuple[Layout, ...] = WHOLE
    needs: Mapping[fx.Node, Layout] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
    bias: fx.Node | None = None
    exchanges: tuple[Exchange, ...] = ()
    why: str = ""

    @property
    def shares_work(self) -> bool:
        """Does a device compute only its part?"""
        layouts = self.gives if isinstance(self.gives, tuple) else (self.gives,)
        return self.bias is not None or any(isinstance(layout, (Split, Partial)) for layout in layouts)


@dataclass
class Hint:
    """How a parameter's split dimension is seen: so many sections, each of so many cells."""

    sections: int
    cells: int


class Demands:
    """What nodes ask of the splits they meet; the next round of propagation heeds it."""

    def __init__(self) -> None:
        self.sections: dict[str, int] = {}
        self.cells: dict[str, int] = {}
        self.follow: dict[str, Hint] = {}

    def cut_into_sections(self, origin: str, sections: int) -> None:
        self.sections[origin] = max(sections, self.sections.get(origin, 1))

    def fewer_cells(self, origin: str, cells: int) -> None:
        self.cells[origin] = gcd(cells, self.cells.get(origin, cells))

    def like(self, parameter: str, split: Split, size: int) -> None:
        """A parameter that is split as what it meets."""
        self.follow.setdefault(parameter, Hint(split.sections(size), split.cells))


@dataclass
class Context:
    """What a rule may ask about the inputs of its node."""

    layouts: Mapping[fx.Node, Layout | tuple[Layout, ...]]
    needs_gradient: frozenset[fx.Node]
    demands: Demands
    _shapes: dict[fx.Node, tuple[int, ...]]

    def layout(self, node: fx.Node) -> Layout:
        found = self.layouts.get(node, WHOLE)
        return WHOLE if isinstance(found, tuple) else found

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Sizes as numbers, those that grow with the rows for many of them."""
        if node not in self._shapes:
            self._shapes[node] = shape_of(node.meta.get("val"))
        return self._shapes[node]

    def has_gradient(self, node: fx.Node) -> bool:
        return node in self.needs_gradient

    def is_parameter(self, node: fx.Node) -> bool:
        return node.op == "get_attr"

    def seen_by_all(self, node: fx.Node) -> Layout:
        """What a tensor must be that every device reads whole and computes a part of whose gradient."""
        return COPIED if self.has_gradient(node) else WHOLE

    def splits(self, nodes: Iterable[fx.Node]) -> dict[fx.Node, Split]:
        return {node: layout for node in nodes if isinstance(layout := self.layout(node), Split)}

    def agree(self, first: Split, other: Split, other_node: fx.Node, other_size: int) -> bool:
        """Have both the same part? If not, the next round may see to it."""
        if first.same_part(other):
            return True
        if self.is_parameter(other_node):
            self.demands.like(other.origin, first, other_size)
        else:
            self.unify(first, other)
        return False

    def unify(self, first: Split, other: Split) -> None:
        """Asks both for cells that can be the same."""
        cells = gcd(first.cells, other.cells)
        for split in (first, other):
            if split.cells != cells:
                self.demands.fewer_cells(split.origin, cells)


def shape_of(value: object) -> tuple[int, ...]:
    return tuple(for_many_rows(size) for size in value.shape) if isinstance(value, Tensor) else ()


Rule = Callable[[fx.Node, Context], Decision | None]
