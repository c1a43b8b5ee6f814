"""DAPPLE's search over splits and placements (see `dapple`), for one number of micro-batches.

A state covers the first j blocks; of those with the same devices used the best is kept, and of all of them the best
`_KEPT` are taken further. Devices are alike, as the first one; a stage may have any number of them up to `_ALL_COUNTS`,
past that 2^k or 3 2^k.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from plait.cost import ring_all_reduce_seconds
from plait.search.baselines.blocks import Array, Blocks, Numbers, between
from plait.search.baselines.fits import Mask, weights_fit
from plait.search.baselines.placement import Counts, placements
from plait.search.baselines.setting import Setting

_KEPT = 6
_ALL_COUNTS = 8

Split = tuple[tuple[int, tuple[int, ...]], ...]  # first block and devices of each stage


def latency(forward: Array, backward: Array, synced: Array, micro_batches: int) -> Array:
    """T_w + T_s + T_e of pipelines whose columns lie along the first axis; a column that is not there is all zeros.

    >>> one = np.ones((3, 1))  # two stages and the channel between them, no synchronisation
    >>> float(latency(one, 2 * one, 0 * one, 4)[0])
    18.0
    """
    both = forward + backward
    last = len(both) - 1
    pivot = np.full(both.shape[1:], last)
    steady, apart = (micro_batches - 1) * both[last], np.zeros(both.shape[1:])
    for column in range(last - 1, -1, -1):
        own = (micro_batches - 1) * both[column]
        moves = own > steady + apart
        pivot = np.where(moves, column, pivot)
        steady = np.where(moves, own, steady)
        apart = np.where(moves, 0.0, apart + both[column])
    done = np.cumsum(backward, axis=0)
    warm_up = _at(np.cumsum(forward, axis=0), pivot)
    ending: Array = _at(done, pivot) + (synced - (done - backward)).max(axis=0)
    return warm_up + steady + ending


def _at(columns: Array, place: Numbers) -> Array:
    return np.take_along_axis(columns, place[None], axis=0)[0]


class Columns(NamedTuple):
    """Forward and backward seconds of one micro-batch and seconds of synchronisation, of a stage or a channel."""

    forward: Array
    backward: Array
    synced: Array


class Stage(NamedTuple):
    first: int
    taken: Counts
    used: Counts  # before


class State(NamedTuple):
    """Stages for the first blocks, and their columns with the channels between them."""

    used: Counts
    stages: tuple[Stage, ...] = ()
    columns: tuple[Columns, ...] = ()


class Step(NamedTuple):
    """One more stage for a state, with the columns for every place where it may end; the last is the rest's."""

    state: State
    stage: Stage
    columns: tuple[Columns, ...]  # the channel to it (where a stage is before it), itself, the channel on, the rest
    allowed: Mask  # may the stage end there?
    complete: Mask  # may the rest then be one stage?

    @property
    def used(self) -> Counts:
        return tuple(before + more for before, more in zip(self.stage.used, self.stage.taken, strict=True))

    def extended(self, place: int) -> State:
        own = tuple(Columns(*(values[place] for values in column)) for column in self.columns[:-2])
        return State(self.used, (*self.state.stages, self.stage), (*self.state.columns, *own))


@dataclass(frozen=True)
class Search:
    setting: Setting
    blocks: Blocks
    micro_batches: int

    def best_splits(self) -> list[tuple[float, Split]]:
        """Latencies and splits, from the best on: the undivided one and the best for each place of the last cut."""
        start = State((0,) * len(self._sizes))
        pending: dict[int, dict[Counts, tuple[float, Step, int]]] = defaultdict(dict)
        found = [*self._undivided()]
        for first in range(len(self.blocks) - 1):
            kept = sorted(pending.pop(first, {}).values(), key=lambda entry: entry[0])[:_KEPT]
            states = [start] if first == 0 else [step.extended(place) for _, step, place in kept]
            steps = [step for state in states for step in self._steps(state, first)]
            if not steps:
                continue
            seconds = self._latencies(steps)
            self._keep(pending, steps, seconds, first)
            whole = np.where([step.complete for step in steps], seconds, np.inf)
            best, place = np.unravel_index(np.argmin(whole), whole.shape)
            if np.isfinite(whole[best, place]):
                state = steps[best].extended(int(place))
                found.append((float(whole[best, place]), self._split(state, first + 1 + int(place))))
        return sorted(found, key=lambda pair: pair[0])

    def _keep(
        self, pending: dict[int, dict[Counts, tuple[float, Step, int]]], steps: list[Step], seconds: Array, first: int
    ) -> None:
        """For every end, the best steps that leave different devices used."""
        order = np.argsort(seconds, axis=0)
        for place, numbers in enumerate(order.T.tolist()):
            known = pending[first + 1 + place]
            seen: set[Counts] = set()
            for number in numbers:
                time, used = float(seconds[number, place]), steps[number].used
                if len(seen) == _KEPT or not np.isfinite(time):
                    break
                if used not in seen and (used not in known or time < known[used][0]):
                    known[used] = time, steps[number], place
                seen.add(used)

    def _latencies(self, steps: list[Step]) -> Array:
        """[step, place]"""
        longest = max(len(step.state.columns) + len(step.columns) for step in steps)
        shape = (longest, len(steps), len(steps[0].allowed))
        stacked = Columns(*(np.zeros(shape) for _ in Columns._fields))
        for number, step in enumerate(steps):
            columns = (*step.state.columns, *step.columns)
            for place, column in enumerate(columns, start=longest - len(columns)):
                for table, values in zip(stacked, column, strict=True):
                    table[place, number] = values
        seconds = latency(*stacked, self.micro_batches)
        return np.where([step.allowed for step in steps], seconds, np.inf)

    def _steps(self, state: State, first: int) -> Iterator[Step]:
        free = sum(self._sizes) - sum(state.used)
        for count in self._counts:
            if count < free:
                for taken in placements(self._sizes, state.used, count):
                    yield self._step(state, Stage(first, taken, state.used))

    def _step(self, state: State, stage: Stage) -> Step:
        ends = np.arange(stage.first + 1, len(self.blocks))
        rest = tuple(s - u - t for s, u, t in zip(self._sizes, stage.used, stage.taken, strict=True))
        own, others = self._on(stage.taken), self._on(rest)
        columns = [
            Columns(*(table[stage.first, ends] for table in own)),
            self._channel(stage.taken, rest, ends),
            Columns(*(table[ends, -1] for table in others)),
        ]
        if state.stages:
            columns.insert(0, self._channel(state.stages[-1].taken, stage.taken, np.full(len(ends), stage.first)))
        allowed = self._may(sum(stage.taken))[stage.first, ends]
        return Step(state, stage, tuple(columns), allowed, self._may(sum(rest))[ends, -1])

    def _undivided(self) -> Iterator[tuple[float, Split]]:
        devices = sum(self._sizes)
        if self._may(devices)[0, -1]:
            whole = Columns(*(table[0, -1].reshape(1, 1) for table in self._on(self._sizes)))
            yield float(latency(*whole, self.micro_batches)[0]), self._split(State((0,) * len(self._sizes)), 0)

    def _split(self, state: State, first: int) -> Split:
        """The stages of a state, and the rest from block `first` on as one on all other devices."""
        rest = tuple(size - used for size, used in zip(self._sizes, state.used, strict=True))
        return tuple((s.first, self._devices(s)) for s in (*state.stages, Stage(first, rest, state.used)))

    def _devices(self, stage: Stage) -> tuple[int, ...]:
        parts = zip(self.setting.network.hosts, stage.used, stage.taken, strict=True)
        return tuple(device for host, used, taken in parts for device in host[used : used + taken])

    # Costs

    @cached_property
    def _sizes(self) -> Counts:
        return tuple(map(len, self.setting.network.hosts))

    @cached_property
    def _rows(self) -> float:
        return self.setting.problem.batch_size / self.micro_batches

    @cached_property
    def _counts(self) -> list[int]:
        """Numbers of devices a stage may have."""
        devices = sum(self._sizes)
        powers = {factor * 2**k for factor in (1, 3) for k in range(devices.bit_length())}
        return sorted(count for count in {*powers, *range(1, _ALL_COUNTS + 1)} if count < min(devices, self._rows + 1))

    @cached_property
    def _weights_fit(self) -> Mask:
        return weights_fit(self.setting, self.blocks)

    def _may(self, devices: int) -> Mask:
        """[start, end]: can these blocks be one stage on so many devices?"""
        if devices == 1:
            return self._weights_fit
        return self._weights_fit & self.blocks.replicable & (devices <= self._rows)

    @cached_property
    def _known(self) -> dict[tuple[int, bool], Columns]:
        return {}

    def _on(self, taken: Counts) -> Columns:
        """[start, end]: the column of those blocks on these devices."""
        key = sum(taken), sum(count > 0 for count in taken) == 1
        if key not in self._known:
            self._known[key] = self._columns(*key)
        return self._known[key]

    def _columns(self, devices: int, one_host: bool) -> Columns:
        setting, blocks = self.setting, self.blocks
        speed = setting.speeds[0]
        rows = self._rows if devices == 1 else math.ceil(self._rows / devices)  # replicas take whole rows
        forward, backward = (t / speed for t in blocks.phase_seconds(setting.kind, rows))
        ring = setting.network.inside if one_host else setting.network.across
        per_byte, fixed = (
            ring_all_reduce_seconds(1.0, devices, ring.bandwidth, 0.0),
            ring_all_reduce_seconds(0.0, devices, ring.bandwidth, ring.latency),
        )
        return Columns(_sums(forward), _sums(backward), fixed + per_byte * _sums(blocks.weights))

    def _channel(self, senders: Counts, receivers: Counts, cuts: Numbers) -> Columns:
        """Between two stages cut at `cuts`; hosts that are on one side alone have an uplink each."""
        sides = [{host for host, count in enumerate(side) if count} for side in (senders, receivers)]
        network = self.setting.network
        level = network.inside if sides[0] == sides[1] and len(sides[0]) == 1 else network.across
        links = min(map(len, sides)) if sides[0].isdisjoint(sides[1]) else min(sum(senders), sum(receivers))
        seconds = level.latency + self._crossing[cuts] / (level.bandwidth * links)
        return Columns(seconds, seconds, np.zeros(len(seconds)))

    @cached_property
    def _crossing(self) -> Array:
        return self.blocks.crossing(self._rows)


def _sums(prefix: Array) -> Array:
    """[start, end], nothing where the end is not behind the start."""
    found = between(prefix)
    return np.where(np.isfinite(found), found, 0.0)
