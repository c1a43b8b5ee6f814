"""The noun `Layout`: which atoms on which devices in how many micro-batches; a plan but for its order."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from plait.plan import Plan, StagePlan
from plait.search.groups import Group, Groups, tensor_of
from plait.search.prm import Shape
from plait.search.problem import Problem
from plait.search.split import split_of


@dataclass(frozen=True)
class Layout:
    """`boundaries` are the first atoms of all stages but the first."""

    boundaries: tuple[int, ...]
    groups: tuple[Group, ...]
    recompute: tuple[bool, ...]
    micro_batches: int

    @property
    def num_stages(self) -> int:
        return len(self.groups)

    @cached_property
    def positions(self) -> list[list[int]]:
        """Stages by the group that holds them."""
        found: dict[Group, list[int]] = {}
        for stage, group in enumerate(self.groups):
            found.setdefault(group, []).append(stage)
        return list(found.values())

    @cached_property
    def place_of(self) -> dict[int, int]:
        """The position of each stage."""
        return {stage: place for place, stages in enumerate(self.positions) for stage in stages}

    @property
    def has_shared_positions(self) -> bool:
        """Whether a group holds more than one stage."""
        return len(self.positions) < self.num_stages

    def plan(self, problem: Problem, groups: Groups, schedule: str, **choices: Any) -> Plan:
        edges = (0, *self.boundaries, len(problem.graph.atoms))
        stages = tuple(
            StagePlan(
                edges[i],
                edges[i + 1],
                tuple(group),
                groups.shares(group),
                self.recompute[i],
                tensor=tensor_of(group),
                split=split_of(problem, edges[i], edges[i + 1], tensor_of(group)),
            )
            for i, group in enumerate(self.groups)
        )
        return Plan(
            model=problem.graph.name,
            fingerprint=problem.graph.fingerprint,
            cluster=problem.cluster,
            batch_size=problem.batch_size,
            micro_batches=self.micro_batches,
            schedule=schedule,
            stages=stages,
            sync=groups.sync,
            overlap=problem.overlap,
            bucket_bytes=groups.bucket_bytes(self.groups),
            batch=problem.batch,
            **choices,
        )

    def changed(self, **changes: Any) -> "Layout":
        return replace(self, **changes)


def layout_of(shape: Shape, micro_batches: int) -> Layout:
    return Layout(shape.boundaries, shape.groups, shape.recompute, micro_batches)
