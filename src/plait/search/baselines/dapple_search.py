"""DAPPLE's search over splits and placements (see `dapple`), for one number of micro-batches.

A state covers the first j blocks on m devices, packed into hosts or spread over them; the best of each goes on, on more
than `_RANGES` devices the best in each of `_RANGES` equal ranges of m. While the rest is the pivot many states take
equally long: then the one whose own longest column is shorter. Devices are alike, as the first one; a stage may have
any number of them up to `_ALL_COUNTS`, past that 2^k or 3 2^k. Replicas take whole rows.
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

_RANGES = 8
_TIE = 1e-3
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


Pending = defaultdict[int, dict[tuple[int, bool], tuple[float, Step, int]]]
"""Per first block left and range of devices used: latency, and the step and place that lead there."""


@dataclass(frozen=True)
class Search:
    setting: Setting
    blocks: Blocks
    micro_batches: int

    def best_splits(self) -> list[tuple[float, Split]]:
        """Latencies and splits, from the best on: the undivided one and the best for each place of the last cut."""
        start = State((0,) * len(self._sizes))
        pending: Pending = defaultdict(dict)
        found = [*self._undivided()]
        for first in range(len(self.blocks) - 1):
            kept = pending.pop(first, {}).values()
            states = [start] if first == 0 else [step.extended(place) for _, step, place in kept]
            steps = [step for state in states for step in self._steps(state, first)]
            if not steps:
                continue
            seconds, longest = self._latencies(steps)
            self._keep(pending, steps, seconds + _TIE * self.micro_batches * longest, first)
            whole = np.where([step.complete for step in steps], seconds, np.inf)
            best, place = np.unravel_index(np.argmin(whole), whole.shape)
            if np.isfinite(whole[best, place]):
                state = steps[best].extended(int(place))
                found.append((float(whole[best, place]), self._split(state, first + 1 + int(place))))
        return sorted(found, key=lambda pair: pair[0])

    def _keep(self, pending: Pending, steps: list[Step], seconds: Array, first: int) -> None:
        """For every end and every range of devices used, the best step that leads there."""
        ranges: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for number, step in enumerate(steps):
            ranges[self._range(step.used)].append(number)
        for key, members in ranges.items():
            best = np.argmin(seconds[members], axis=0)
            for place, choice in enumerate(best.tolist()):
                number = members[choice]
                time, known = float(seconds[number, place]), pending[first + 1 + place]
                if np.isfinite(time) and (key not in known or time < known[key][0]):
                    known[key] = time, steps[number], place

    def _range(self, used: Counts) -> tuple[int, bool]:
        """The range of the number of devices used, and whether they are packed: at most one host begun and not full."""
        number, devices = sum(used), sum(self._sizes)
        packed = sum(0 < count < size for count, size in zip(used, self._sizes, strict=True)) < 2
        return (number if devices <= _RANGES else (number - 1) * _RANGES // devices), packed

    def _latencies(self, steps: list[Step]) -> tuple[Array, Array]:
        """[step, place]: the latency, and the longest column but the rest's."""
        longest = max(len(step.state.columns) + len(step.columns) for step in steps)
        shape = (longest, len(steps), len(steps[0].allowed))
        stacked = Columns(*(np.zeros(shape) for _ in Columns._fields))
        for number, step in enumerate(steps):
            columns = (*step.state.columns, *step.columns)
            for place, column in enumerate(columns, start=longest - len(columns)):
                for table, values in zip(stacked, column, strict=True):
                    table[place, number] = values
        seconds = latency(*stacked, self.micro_batches)
        seconds = np.where([step.allowed for step in steps], seconds, np.inf)
        return seconds, (stacked.forward + stacked.backward)[:-1].max(axis=0)

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

    def _may(self, devices: int) -> Mask:
        """[start, end]: can these blocks be one stage on so many devices?"""
        return self._on_one if devices == 1 else self._on_several if devices <= self._rows else self._nothing

    @cached_property
    def _on_one(self) -> Mask:
        return weights_fit(self.setting, self.blocks)

    @cached_property
    def _on_several(self) -> Mask:
        return self._on_one & self.blocks.replicable

    @cached_property
    def _nothing(self) -> Mask:
        return np.zeros_like(self._on_one)

    @cached_property
    def _known(self) -> dict[tuple[int, bool], Columns]:
        return {}

    def _on(self, taken: Counts) -> Columns:
        """[start, end]: the column of those blocks on these devices."""
        key = sum(taken), len(self._hosts(taken)) == 1
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
        """Between two stages cut at `cuts`: a link per device inside one host, one per host between hosts."""
        sides = self._hosts(senders), self._hosts(receivers)
        together = sides[0] == sides[1] and len(sides[0]) == 1
        level = self.setting.network.inside if together else self.setting.network.across
        links = min(sum(senders), sum(receivers)) if together else min(map(len, sides))
        seconds = level.latency + self._crossing[cuts] / (level.bandwidth * links)
        return Columns(seconds, seconds, np.zeros(len(seconds)))

    def _hosts(self, taken: Counts) -> frozenset[int]:
        if taken not in self._known_hosts:
            self._known_hosts[taken] = frozenset(host for host, count in enumerate(taken) if count)
        return self._known_hosts[taken]

    @cached_property
    def _known_hosts(self) -> dict[Counts, frozenset[int]]:
        return {}

    @cached_property
    def _crossing(self) -> Array:
        return self.blocks.crossing(self._rows)


def _sums(prefix: Array) -> Array:
    """[start, end], nothing where the end is not behind the start."""
    found = between(prefix)
    return np.where(np.isfinite(found), found, 0.0)
