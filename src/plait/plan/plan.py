"""The noun `Plan`: which atoms run where, with which micro-batches in which order. Plain data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from plait.cluster import Cluster
from plait.errors import PlaitError
from plait.graph import Graph
from plait.graph.cut import StageCut, cut

DEFAULT_BUCKET_BYTES = 25 * 2**20
# Gradients are summed when a rank has computed all; as soon as they are final; and until the next step needs the sums.
OVERLAPS = ("off", "backward", "full")


@dataclass(frozen=True)
class StagePlan:
    """Atoms `start..end-1` on `devices` (numbers in the cluster), each taking its share of the rows.

    With `recompute` a forward keeps only the stage's inputs, and the backward runs the forward again first. With full
    overlap gradient sums begin in the order of `sum_order`, in which 0 is the one that the next step needs first, and
    those it leaves out follow as they are needed; where it is empty all begin as gradients become final.
    """

    start: int
    end: int
    devices: tuple[int, ...]
    shares: tuple[float, ...]
    recompute: bool = False
    sum_order: tuple[int, ...] = ()

    @property
    def replicas(self) -> int:
        return len(self.devices)


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
        """`2x3` is two positions of three replicas each, `3+2` positions of three and of two."""
        replicas = [self.stages[first].replicas for first, *_ in self.positions]
        if len(set(replicas)) == 1:
            return f"{len(replicas)}x{replicas[0]}"
        return "+".join(map(str, replicas))


def validate(plan: Plan, graph: Graph) -> None:
    """Raises PlaitError where the plan does not fit the model or would not compute its gradients."""
    if plan.fingerprint != graph.fingerprint:
        raise PlaitError(
            f"the plan was made for {plan.model} (fingerprint {plan.fingerprint}), but this model is {graph.name} "
            f"(fingerprint {graph.fingerprint}). Plan again with `plait plan` for this model and its options."
        )
    _check_stages(plan, graph)
    _check_devices(plan)
    if plan.batch_size < plan.micro_batches * plan.most_replicas:
        raise PlaitError(
            f"batch size {plan.batch_size} is smaller than {plan.micro_batches} micro-batches x "
            f"{plan.most_replicas} replicas = {plan.micro_batches * plan.most_replicas}: some replica would have "
            "no row to work on. Use a larger batch, fewer micro-batches or fewer replicas."
        )
    for index, (stage, part) in enumerate(zip(plan.stages, plan.cut(graph), strict=True)):
        bad = [mixer for mixer in part.row_mixers if not mixer.remedy]
        if stage.replicas > 1 and bad:
            where = f"module {bad[0].module}" if bad[0].module else "the model"
            raise PlaitError(
                f"stage {index} is on {stage.replicas} devices, which splits a micro-batch's rows, but {bad[0].node} "
                f"in {where} cannot be split: {bad[0].why}. Put that stage on one device, or make the loss a mean "
                "over rows that do not depend on one another."
            )


def _check_stages(plan: Plan, graph: Graph) -> None:
    end = 0
    for index, stage in enumerate(plan.stages):
        if stage.start != end or stage.end <= stage.start:
            raise PlaitError(
                f"stage {index} holds atoms {stage.start} to {stage.end}, but the stages before it end at {end}: every "
                "atom is in one stage, in order. The plan is damaged: plan again."
            )
        if len(set(stage.sum_order)) < len(stage.sum_order) or min(stage.sum_order, default=0) < 0:
            raise PlaitError(
                f"stage {index} sums gradients in the order {list(stage.sum_order)}: every number is that of a bucket, "
                "from 0 on, and comes once. The plan is damaged: plan again."
            )
        end = stage.end
    if end != len(graph.atoms):
        raise PlaitError(
            f"the stages end at atom {end}, but {graph.name} has {len(graph.atoms)} atoms. The plan is damaged: "
            "plan again."
        )


def _check_devices(plan: Plan) -> None:
    holder: dict[int, StagePlan] = {}
    for index, stage in enumerate(plan.stages):
        for device in stage.devices:
            if not 0 <= device < len(plan.cluster.devices):
                raise PlaitError(
                    f"stage {index} uses device {device}, but cluster {plan.cluster.name} has devices 0 to "
                    f"{len(plan.cluster.devices) - 1}. Plan again for this cluster."
                )
            if stage.devices.count(device) > 1:
                raise PlaitError(f"stage {index} has device {device} twice; give each device of a stage once.")
            other = holder.setdefault(device, stage)
            if (other.devices, other.shares) != (stage.devices, stage.shares):
                raise PlaitError(
                    f"device {device} is given to two stages that do not share all their devices and row shares "
                    f"({list(other.devices)} and {list(stage.devices)}); give them the same, or devices of their own."
                )
        if len(stage.shares) != len(stage.devices) or not all(0 < share < math.inf for share in stage.shares):
            raise PlaitError(
                f"stage {index} has shares {list(stage.shares)} for {len(stage.devices)} devices: one positive "
                "number per device is needed."
            )


def even_stages(boundaries: Sequence[int], end: int, devices: Sequence[Sequence[int]]) -> tuple[StagePlan, ...]:
    """Stages between `boundaries` on the given devices, rows in equal shares."""
    edges = [0, *boundaries, end]
    return tuple(
        StagePlan(edges[i], edges[i + 1], tuple(group), (1.0,) * len(group)) for i, group in enumerate(devices)
    )
