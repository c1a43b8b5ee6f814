"""The noun `Plan`: which atoms run where, with which micro-batches in which order. Plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from plait.cluster import Cluster
from plait.graph import Graph
from plait.graph.cut import StageCut, cut

DEFAULT_BUCKET_BYTES = 25 * 2**20
# Gradients are summed when a rank has computed all; as soon as they are final; and until the next step needs the sums.
OVERLAPS = ("off", "backward", "full")


@dataclass(frozen=True)
class StagePlan:
    """Atoms `start..end-1` on `devices` (numbers in the cluster): replicas, each taking its share of the rows.

    A replica is a *tensor group* of `tensor` devices, which come one after the other in `devices` and share each layer:
    `split` says along which dimension a parameter or buffer is split over them; one not named is whole on each.

    With `recompute` a forward keeps only the stage's inputs, and the backward runs the forward again first. With full
    overlap so many gradient sums as `sums_as_final` says begin as gradients become final (all, where it says nothing),
    and then the others in the order in which the next step needs them.
    """

    start: int
    end: int
    devices: tuple[int, ...]
    shares: tuple[float, ...]
    recompute: bool = False
    sums_as_final: int | None = None
    tensor: int = 1
    split: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def replicas(self) -> int:
        return len(self.devices) // self.tensor

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each replica."""
        return tuple(self.devices[i : i + self.tensor] for i in range(0, len(self.devices), self.tensor))


@dataclass(frozen=True)
class Plan:
    """A complete answer to "how should this model be trained on this cluster".

    A device may hold several stages (interleaved schedules); then these have all their devices in common. `lanes`,
    where given, is the order of actions at each position in the notation of `plait.schedule`, and `schedule` its name.
    """

    model: str
    fingerprint: str
    cluster: Cluster
    batch_size: int
    micro_batches: int
    schedule: str
    stages: tuple[StagePlan, ...]
    sync: str = "ring"  # how a stage's replicas sum their gradients: a name of `plait.cost.SYNCHRONISATIONS`
    overlap: str = "full"  # of gradient sums with computation: one of `OVERLAPS`
    lanes: tuple[str, ...] = ()
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    batch: Any = None  # shape and type of an example batch (`plan.batches.describe`), to capture the model again
    predicted_seconds: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Device of each rank: the devices in use, in the cluster's order."""
        return tuple(sorted({device for stage in self.stages for device in stage.devices}))

    @cached_property
    def rank_of_device(self) -> dict[int, int]:
        return {device: rank for rank, device in enumerate(self.devices)}

    @cached_property
    def positions(self) -> tuple[tuple[int, ...], ...]:
        """Stages by the devices that hold them, in the order in which the first micro-batch comes to those."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, stage in enumerate(self.stages):
            groups.setdefault(stage.devices, []).append(index)
        return tuple(map(tuple, groups.values()))

    @property
    def num_ranks(self) -> int:
        return len(self.devices)

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        return tuple(self.rank_of_device[device] for device in self.stages[stage].devices)

    @property
    def most_replicas(self) -> int:
        return max(stage.replicas for stage in self.stages)

    def cut(self, graph: Graph) -> tuple[StageCut, ...]:
        return cut(graph, [stage.start for stage in self.stages[1:]])

    def layout(self) -> str:
        """`2x3` is two positions of three replicas each, `3+2` positions of three and of two.

        `2x3x4` and `3x4+2`: the replicas, or those of one position, are groups of four devices that share each layer.
        """
        grids = self.grids
        return f"{len(grids)}x{grids[0]}" if len(set(grids)) == 1 else "+".join(grids)

    @property
    def grids(self) -> list[str]:
        """By position: replicas, or replicas x devices of each."""
        stages = [self.stages[first] for first, *_ in self.positions]
        return [f"{s.replicas}x{s.tensor}" if s.tensor > 1 else str(s.replicas) for s in stages]


def even_stages(boundaries: Sequence[int], end: int, devices: Sequence[Sequence[int]]) -> tuple[StagePlan, ...]:
    """Stages between `boundaries` on the given devices, rows in equal shares."""
    edges = [0, *boundaries, end]
    return tuple(
        StagePlan(edges[i], edges[i + 1], tuple(group), (1.0,) * len(group)) for i, group in enumerate(devices)
    )
