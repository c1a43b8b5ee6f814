"""The noun `Setting`: a problem with what every layout of it is costed from, looked up once."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from plait.search.baselines.blocks import Array, Blocks, blocks_of
from plait.search.baselines.held import Held, Uses, held_by, uses_of
from plait.search.baselines.network import Network
from plait.search.problem import Problem


@dataclass(frozen=True)
class Setting:
    problem: Problem
    _held: dict[tuple[int, ...], Held] = field(default_factory=dict, repr=False)

    @cached_property
    def atoms(self) -> Blocks:
        """The chain unmerged."""
        return blocks_of(self.problem)

    @cached_property
    def network(self) -> Network:
        return Network(self.problem.cluster)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        return tuple(range(len(self.problem.cluster.devices)))

    @cached_property
    def speeds(self) -> Array:
        return np.array([device.speed for device in self.problem.cluster.devices])

    @cached_property
    def memory(self) -> Array:
        return np.array([float(device.memory_bytes) for device in self.problem.cluster.devices])

    @cached_property
    def kinds(self) -> list[str]:
        """Kind of every device."""
        return [device.kind.name for device in self.problem.cluster.devices]

    @property
    def kind(self) -> str:
        """The kind whose times are those of all, to a planner that knows only one: the first device's."""
        return self.kinds[0]

    def held(self, boundaries: tuple[int, ...]) -> Held:
        if boundaries not in self._held:
            self._held[boundaries] = held_by(self._uses, boundaries)
        return self._held[boundaries]

    @cached_property
    def _uses(self) -> Uses:
        return uses_of(self.problem.graph)
