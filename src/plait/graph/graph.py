"""The noun `Graph`: a model as a chain of indivisible atoms, with what flows between them.

Everything right of this package (costs, plans, programs, the simulator) reads only this plain data. The
captured PyTorch code it came from is kept beside it (`capture.Captured`), so a graph can as well come
from another tool's profile, without a model.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True)
class Value:
    """A tensor one atom makes and later atoms use: what crosses a cut between them.

    `shape` is the shape for one row of the batch. Where `batch_dim` is set, that dimension has
    `shape[batch_dim]` entries for every row, in row order, so rows can be sent apart; where it is None
    the tensor does not grow with the batch and every replica holds the same. `order` lists the dimensions as they
    lie in memory, outermost first (none: in their own order): a tensor arrives as it left, because how PyTorch adds
    up in float32 depends on it.
    """

    name: str
    producer: int
    consumers: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    batch_dim: int | None
    requires_grad: bool
    order: tuple[int, ...] = ()

    @cached_property
    def row_bytes(self) -> int:
        """Bytes for one row (for the whole tensor where it has no batch dimension)."""
        count = ITEM_BYTES[self.dtype]
        for size in self.shape:
            count *= size
        return count

    def num_bytes(self, rows: int) -> int:
        return self.row_bytes * rows if self.batch_dim is not None else self.row_bytes


@dataclass(frozen=True)
class Parameter:
    """A parameter or buffer under its original name, and every atom that reads it.

    `may_be_skipped`: all who read it may be left out of a run of the model (LayerDrop), so that it gets no gradient.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    atoms: tuple[int, ...]
    trainable: bool
    is_buffer: bool
    may_be_skipped: bool = False

    @cached_property
    def num_bytes(self) -> int:
        count = ITEM_BYTES[self.dtype]
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class Atom:
    """Nodes that no cut may part. `binds` says why, one line per rule that joined several nodes.

    `module` is the first node's module, `modules` those of all nodes, in their order (empty where unknown).
    """

    name: str
    module: str
    nodes: tuple[str, ...]
    binds: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @cached_property
    def node_modules(self) -> tuple[str, ...]:
        """The module of every node; as good as it is known."""
        return self.modules or (self.module,) * len(self.nodes)


@dataclass(frozen=True)
class RowMixer:
    """A node whose rows depend on one another, so that a micro-batch's rows may not simply be split.

    `remedy` is how the runtime still computes it exactly over split rows: "exchange" what the rows share
    (BatchNorm statistics) inside the forward and backward, "count" what they share beforehand (targets
    of a mean), or "" where it knows no way.
    """

    atom: int
    node: str
    module: str
    why: str
    remedy: str


@dataclass(frozen=True)
class Graph:
    """Atoms 0..L-1 in an order in which every prefix is a legal cut."""

    name: str
    atoms: tuple[Atom, ...]
    values: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    row_mixers: tuple[RowMixer, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever a plan for the old graph would not fit the new one."""
        content = [
            [(atom.name, atom.nodes) for atom in self.atoms],
            [(v.name, v.producer, v.consumers, v.shape, v.dtype, v.batch_dim) for v in self.values],
            [(p.name, p.shape, p.dtype, p.atoms, p.is_buffer) for p in self.parameters],
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @cached_property
    def value_by_name(self) -> dict[str, Value]:
        return {value.name: value for value in self.values}

    def boundary_bytes(self, position: int, rows: int) -> int:
        """Bytes alive across the cut before atom `position`, each value counted once."""
        return sum(v.num_bytes(rows) for v in self.values if v.producer < position <= max(v.consumers))
