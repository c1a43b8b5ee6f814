"""How a tensor lies on the devices of a tensor group, and how a dimension is shared between them.

| layout    | a device has                    | the gradient a device has            |
| --------- | ------------------------------- | ------------------------------------ |
| `WHOLE`   | the tensor                      | the whole gradient                   |
| `COPIED`  | the tensor                      | a part; their sum is the gradient    |
| `Split`   | its part along one dimension    | that part of the gradient            |
| `PARTIAL` | a part; their sum is the tensor | the whole gradient                   |

A split dimension is seen as sections x cells x units, and a device gets whole cells, the same ones of every section. So
a projection to queries, keys and values in one has three sections, its cells are heads and its unit is a head's width.
How many sections there are follows from the size, which may grow with the rows.
"""

from dataclasses import dataclass, field
from itertools import accumulate

from plait.graph.sharding.sharding import split_sizes


@dataclass(frozen=True)
class Whole:
    """The same on every device."""


@dataclass(frozen=True)
class Copied:
    """The same on every device, each of which computes a part of its gradient."""


@dataclass(frozen=True)
class Partial:
    """A term of a sum on every device."""


@dataclass(frozen=True)
class Split:
    """Along `dim`. `origin` is the parameter whose split it comes from, and no difference between two layouts."""

    dim: int
    cells: int
    unit: int
    origin: str = field(compare=False)

    def sections(self, size: int) -> int:
        """Of a dimension of `size`."""
        return size // (self.cells * self.unit)

    def same_part(self, other: "Split") -> bool:
        """Do devices have the same part of the dimension, whatever its number?"""
        return (self.cells, self.unit) == (other.cells, other.unit)


Layout = Whole | Copied | Partial | Split
WHOLE, COPIED, PARTIAL = Whole(), Copied(), Partial()


def own_cells(cells: int, degree: int, index: int) -> tuple[int, int]:
    """The first cell of device `index`, and how many it has."""
    sizes = split_sizes(cells, degree)
    return list(accumulate(sizes, initial=0))[index], sizes[index]
