"""The noun `Layout`: stages on devices before the micro-batches are chosen, with a quick time and a quick memory.

For M micro-batches, F_s, B_s of one micro-batch on the slowest replica, c of a boundary in one direction, and v stages
at each position (one but for interleaved schedules):

    seconds = fill + max( (M - 1/v) load, wait ) + max_s (A_s + step_s)
    fill    = ( sum_s (F_s + B_s) + sum of boundaries 2 c ) / v
    load    = max over positions of the sum over its stages of F_s + B_s, or of c
    wait    = max_s (M / K_s - 1) RTT_s for v = 1, with RTT_s the part of fill from stage s on, but of messages that
              share no cable, as replicas do not keep step, and K_s the micro-batches stage s may hold

the pipeline filled and drained, its slowest resource or its round trips in between, then synchronised (A_s, a ring).
It ranks candidates; what a plan really takes is the simulator's to say. Memory is what a stage always holds plus, for
every micro-batch between its forward and its backward, what is saved, received and being sent.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.plan import Plan, StagePlan
from plait.plan.plan import DEFAULT_BUCKET_BYTES
from plait.schedule import RECIPES
from plait.search.baselines.blocks import Array, Numbers
from plait.search.baselines.held import Held
from plait.search.baselines.setting import Setting
from plait.search.groups import Group, grouped
from plait.search.problem import Problem
from plait.search.split import split_of

_ROUNDING = 1e-9
_EXTRA_MESSAGES = 2  # a receive posted ahead, a gradient still leaving


@dataclass(frozen=True)
class Layout:
    """Stages between `boundaries` (atoms) on groups of devices, rows of a micro-batch in equal or given shares.

    Groups that come again hold several stages, for interleaved schedules. Where each device stands for a tensor group
    (`shared`), `asked` is the problem of all devices.
    """

    setting: Setting
    boundaries: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[float, ...], ...] | None = None
    tensor: int = 1
    asked: Problem | None = None

    @property
    def problem(self) -> Problem:
        """Of all devices."""
        return self.asked or self.setting.problem

    @property
    def most_replicas(self) -> int:
        return max(map(len, self.groups))

    @cached_property
    def edges(self) -> Numbers:
        return np.array([0, *self.boundaries, len(self.setting.atoms)])

    def seconds(self, micro_batches: Numbers, schedule: str) -> Array:
        """Step time for each number of micro-batches."""
        rows = self.setting.problem.batch_size / micro_batches
        compute = self._compute_seconds(rows)
        together, alone = self._channel_seconds(rows)
        load = np.maximum(self._at_positions(compute).max(axis=0), self._at_positions(together).max(axis=0))
        middle = (micro_batches - 1 / self._rounds) * load
        if self._rounds == 1:
            round_trip = np.cumsum((compute + 2 * alone)[::-1], axis=0)[::-1]
            held = self._in_flight(micro_batches, schedule)
            middle = np.maximum(middle, ((micro_batches / held - 1) * round_trip).max(axis=0))
        fill = (compute + 2 * together).sum(axis=0) / self._rounds
        seconds: Array = fill + middle + self._update_seconds
        return seconds

    def fits(self, micro_batches: Numbers, schedule: str) -> NDArray[np.bool_]:
        """For each number of micro-batches: is there memory for it on every device?"""
        rows = np.ceil(self._fraction[:, None] * np.ceil(self.setting.problem.batch_size / micro_batches))
        stage, held = self._stage, self._held
        received = held.received_fixed[stage, None] + held.received_per_row[stage, None] * rows
        sent = held.sent_fixed[stage, None] + held.sent_per_row[stage, None] * rows
        saved = self._per_replica("saved_fixed")[:, None] + self._per_replica("saved_per_row")[:, None] * rows
        always = held.always[stage] + held.trained[stage] * (1 + self._state)
        in_flight = self._in_flight(micro_batches, schedule)[stage % self._num_positions] / self._rounds
        most = always[:, None] + in_flight * (saved + received + sent) + _EXTRA_MESSAGES * (received + sent)
        used = np.zeros((len(self.setting.devices), len(micro_batches)))
        np.add.at(used, self._device, most)
        enough: NDArray[np.bool_] = np.all(used <= self.setting.memory[:, None], axis=0)
        return enough

    @cached_property
    def _num_positions(self) -> int:
        return len(set(self.groups))

    @cached_property
    def _rounds(self) -> int:
        """Stages at each position, which a micro-batch passes in as many rounds over all positions."""
        return len(self.groups) // self._num_positions

    def _at_positions(self, of_stages: Array) -> Array:
        """The stages of each position added up."""
        found: Array = of_stages.reshape(self._rounds, self._num_positions, -1).sum(axis=0)
        return found

    def _in_flight(self, micro_batches: Numbers, schedule: str) -> Array:
        """Most micro-batches between forward and backward: [position, number of micro-batches]."""
        places: Any = np.arange(self._num_positions)
        holds, size, rounds = RECIPES[schedule].holds, self._num_positions, self._rounds
        bounds = [np.minimum(holds(places, size, rounds, count), rounds * count) for count in micro_batches.tolist()]
        return np.stack([np.broadcast_to(bound, size) for bound in bounds], axis=1).astype(float)

    def num_instructions(self, micro_batches: int) -> int:
        """About as many as the plan's program will have."""
        replicas = np.array([len(group) for group in self.groups])
        buckets = np.ceil(self._held.trained / DEFAULT_BUCKET_BYTES)
        return int(self.tensor * np.sum(replicas * (micro_batches * (4 + 2 * self._held.messages) + 3 * buckets)))

    def plan(self, micro_batches: int, schedule: str) -> Plan:
        problem = self.problem
        shares = self.shares or [(1.0,) * len(group) for group in self.groups]
        return Plan(
            model=problem.graph.name,
            fingerprint=problem.graph.fingerprint,
            cluster=problem.cluster,
            batch_size=problem.batch_size,
            micro_batches=micro_batches,
            schedule=schedule,
            overlap=problem.overlap,
            stages=tuple(
                StagePlan(
                    int(start),
                    int(end),
                    tuple(group),
                    tuple(own),
                    tensor=self.tensor,
                    split=split_of(problem, int(start), int(end), self.tensor),
                )
                for (start, end), group, own in zip(pairwise(self.edges), self.stage_groups, shares, strict=True)
            ),
            batch=problem.batch,
        )

    @property
    def stage_groups(self) -> tuple[Group, ...]:
        """All devices of each stage."""
        whole = ([first + place for first in group for place in range(self.tensor)] for group in self.groups)
        return tuple(grouped(devices, self.tensor) for devices in whole)

    # Per replica, all stages' one after the other

    @cached_property
    def _device(self) -> Numbers:
        return np.array([device for group in self.groups for device in group])

    @cached_property
    def _stage(self) -> Numbers:
        return np.repeat(np.arange(len(self.groups)), [len(group) for group in self.groups])

    @cached_property
    def _fraction(self) -> Array:
        """Of a micro-batch's rows."""
        if self.shares is None:
            return 1.0 / np.array([len(group) for group in self.groups], dtype=float)[self._stage]
        return np.array([share / sum(own) for own in self.shares for share in own])

    @cached_property
    def _kind(self) -> NDArray[np.str_]:
        return np.array(self.setting.kinds)[self._device]

    def _per_replica(self, field: str) -> Array:
        """What a replica's stage has of a field of the atoms' costs, on the replica's kind of device."""
        values = np.zeros(len(self._stage))
        for kind in set(self._kind.tolist()):
            of_stage = np.diff(self.setting.atoms.total(kind, field)[self.edges])
            values = np.where(self._kind == kind, of_stage[self._stage], values)
        return values

    @cached_property
    def _state(self) -> Array:
        """Bytes the optimiser keeps per trained byte."""
        optimizer = self.setting.problem.costs.optimizer
        return np.array([optimizer[kind].state_bytes_per_byte for kind in self._kind.tolist()])

    # Per stage and number of micro-batches

    def _compute_seconds(self, rows: Array) -> Array:
        fixed = self._per_replica("forward_fixed") + self._per_replica("backward_fixed")
        per_row = self._per_replica("forward_per_row") + self._per_replica("backward_per_row")
        own = self._fraction[:, None] * rows
        own = np.where(self._fraction[:, None] < 1, np.ceil(own - _ROUNDING), own)  # replicas take whole rows
        each = fixed[:, None] + per_row[:, None] * own
        return np.maximum.reduceat(each / self.setting.speeds[self._device][:, None], self._first, axis=0)

    def _channel_seconds(self, rows: Array) -> tuple[Array, Array]:
        """One way to the next stage (none from the last): all replicas' messages at once, and one's alone."""
        channels = [self.setting.network.channel(a, b) for a, b in pairwise(self.groups)]
        inner = self.edges[1:-1]
        fixed, per_row = self.setting.atoms.crossing_fixed[inner], self.setting.atoms.crossing_per_row[inner]
        num_bytes = fixed[:, None] + per_row[:, None] * rows
        table = np.array(channels).reshape(-1, 3, 1)
        none = np.zeros((1, len(rows)))
        latency = table[:, 1]
        together, alone = latency + num_bytes / table[:, 0], latency + num_bytes / table[:, 2]
        return np.vstack([together, none]), np.vstack([alone, none])

    @cached_property
    def _update_seconds(self) -> float:
        """The slowest stage's gradient synchronisation and optimiser step."""
        optimizer = self.setting.problem.costs.optimizer
        step = np.array([optimizer[kind].seconds_per_byte for kind in self._kind.tolist()])
        slowest = np.maximum.reduceat(step / self.setting.speeds[self._device], self._first)
        trained = self._held.trained
        sums = [self._sum_seconds(n, g) for n, g in zip(trained, self.groups, strict=True)]
        return float(np.max(np.array(sums) + slowest * trained))

    def _sum_seconds(self, num_bytes: float, group: tuple[int, ...]) -> float:
        """As many rings as a tensor group has devices share the hosts' links."""
        network = self.setting.network
        rings = self.tensor if len({network.host_of[device] for device in group}) > 1 else 1
        return network.all_reduce_seconds(num_bytes * rings, group)

    @cached_property
    def _first(self) -> Numbers:
        """The first replica of each stage."""
        return np.concatenate([[0], np.cumsum([len(group) for group in self.groups])[:-1]])

    @cached_property
    def _held(self) -> Held:
        return self.setting.held(self.boundaries)
