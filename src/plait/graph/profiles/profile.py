"""The noun `Profile`: what another tool measured of a model. Nodes, what flows between them, what each takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Way:
    """One way to run a node: on `degree` devices (tensor parallel), keeping its activations or recomputing them.

    Seconds and `saved_bytes` (kept from the forward to the backward) are for one row. `fixed_bytes` are held
    whatever the rows, parameters and gradients among them; 0 where the tool does not say. The exchanges are
    bytes per row that the `degree` devices pass each other, by the node at the other end of the edge.
    """

    degree: int
    recompute: bool
    forward_seconds: float
    backward_seconds: float
    parameter_bytes: int
    saved_bytes: float
    fixed_bytes: float = 0.0
    forward_exchange: Mapping[str, float] = field(default_factory=dict)
    backward_exchange: Mapping[str, float] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return not (self.forward_seconds or self.backward_seconds or self.parameter_bytes)


@dataclass(frozen=True)
class ProfileNode:
    """A module or operation, under the tool's own name, with every way it was measured."""

    name: str
    description: str
    ways: tuple[Way, ...]

    @cached_property
    def plain(self) -> Way:
        """On one device, without recomputation. Readers make sure that there is one."""
        return next(way for way in self.ways if way.degree == 1 and not way.recompute)

    @property
    def operation(self) -> str:
        """`Conv2d` of `Conv2d(3, 64, kernel_size=(7, 7))`."""
        return self.description.split("(")[0].strip()


@dataclass(frozen=True)
class ProfileEdge:
    """What `source` hands to `target`: bytes per row, or in all where it does not grow with the batch."""

    source: str
    target: str
    num_bytes: int
    per_row: bool = True


@dataclass(frozen=True)
class Profile:
    """Nodes in the order their tool numbered them; edges in any order.

    `rows` is how many rows its numbers were measured with; they are kept here for one row.
    """

    name: str
    nodes: tuple[ProfileNode, ...]
    edges: tuple[ProfileEdge, ...]
    rows: int

    @cached_property
    def node_by_name(self) -> dict[str, ProfileNode]:
        return {node.name: node for node in self.nodes}
