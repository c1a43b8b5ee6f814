"""The noun `Program`: a list of instructions per rank, and the tables its names refer to.

One program is simulated, emulated or run. It knows nothing of devices or seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from plait.graph import Value
from plait.plan.rows import Span
from plait.program.instructions import Instruction

TIED_PREFIX = "tied."  # of the names of buckets whose parameter several stages hold


@dataclass(frozen=True)
class Bucket:
    """Parameters whose gradients are summed together over `ranks` and updated together.

    They belong to one `stage`, or are one tied parameter of several. `readers` are the first and the last atom of each
    of these stages that read any of them: a forward needs them from the first on, a backward is done with them there.
    Of a stage on tensor groups, `ranks` are those with the same place in each group, and the bytes those of their part.
    """

    name: str
    parameters: tuple[str, ...]
    num_bytes: int
    ranks: tuple[int, ...]
    readers: tuple[tuple[int, int], ...]
    stage: int | None = None
    number: int = 0  # in the stage, as gradients become final

    @property
    def tied(self) -> bool:
        return self.stage is None


@dataclass(frozen=True)
class Edge:
    """A value, the stage that makes it and the stages that use it."""

    value: Value
    producer: int
    consumers: tuple[int, ...]


@dataclass(frozen=True)
class StageTable:
    """Where a stage runs and which rows of each micro-batch each of its ranks takes.

    Every `tensor` ranks are a group that shares each layer: its ranks have the same rows and run together. `coupled`
    stages exchange statistics inside their forward and backward, so that their ranks run each micro-batch together. A
    stage that recomputes keeps only its inputs between forward and backward.
    """

    start: int
    end: int
    ranks: tuple[int, ...]
    rows: tuple[tuple[Span, ...], ...]  # [micro-batch][rank]
    coupled: bool
    recompute: bool = False
    tensor: int = 1

    @property
    def replicas(self) -> int:
        return len(self.ranks) // self.tensor

    def spans(self, micro_batch: int) -> tuple[Span, ...]:
        """The rows of each replica."""
        return self.rows[micro_batch][:: self.tensor]

    def group(self, rank: int) -> tuple[int, ...]:
        """The ranks that share each layer with this one."""
        first = self.ranks.index(rank) // self.tensor * self.tensor
        return self.ranks[first : first + self.tensor]

    def together(self, rank: int, micro_batch: int) -> tuple[int, ...]:
        """The ranks that run a micro-batch together with this one: all that have rows of it where they are coupled."""
        if not self.coupled:
            return self.group(rank)
        return tuple(r for r, (low, high) in zip(self.ranks, self.rows[micro_batch], strict=True) if high > low)


class HandOver(NamedTuple):
    """A value that goes from one stage to another on the same ranks, and its gradient back: nothing is sent.

    `source` makes the value or has received it itself, so that it comes to a rank once however many stages use it.
    """

    value: Value
    source: int
    sink: int


def source_stage(edge: Edge, consumer: int, stages: Sequence[StageTable]) -> int:
    """The stage on its own ranks from which `consumer` takes the value; itself where it comes as a message."""
    ranks = stages[consumer].ranks
    return next(stage for stage in (edge.producer, *edge.consumers) if stages[stage].ranks == ranks)


@dataclass(frozen=True)
class Program:
    ranks: tuple[tuple[Instruction, ...], ...]
    stages: tuple[StageTable, ...]
    edges: tuple[Edge, ...]
    buckets: tuple[Bucket, ...]
    micro_batch_rows: tuple[int, ...]

    @cached_property
    def bucket_by_name(self) -> dict[str, Bucket]:
        return {bucket.name: bucket for bucket in self.buckets}

    @cached_property
    def edge_by_name(self) -> dict[str, Edge]:
        return {edge.value.name: edge for edge in self.edges}

    @cached_property
    def hand_overs(self) -> tuple[HandOver, ...]:
        pairs = [(edge, consumer) for edge in self.edges for consumer in edge.consumers]
        found = [(edge.value, source_stage(edge, consumer, self.stages), consumer) for edge, consumer in pairs]
        return tuple(HandOver(value, source, sink) for value, source, sink in found if source != sink)

    @property
    def batch_rows(self) -> int:
        return sum(self.micro_batch_rows)

    @property
    def num_instructions(self) -> int:
        return sum(len(instructions) for instructions in self.ranks)

    def stages_of_rank(self, rank: int) -> tuple[int, ...]:
        return tuple(index for index, stage in enumerate(self.stages) if rank in stage.ranks)
