"""PipeDream's dynamic program, its plan run with a flush (1F1B).

    T1(i, j, m) = ( comp(i..j) + 4 (m-1) W(i..j) / (m bw) ) / m              blocks i..j as one stage on m devices
    A(i, j, m)  = min( T1(i, j, m),
                       min over k, m' of max( A(i, k, m-m'), 2 act(k) / (bw m'), T1(k+1, j, m') ) )

Devices are taken to be alike, as the first one. Where all hosts have equally many, several devices, the program runs
once per level, as PipeDream's does: first over the devices of a host with the bandwidth inside it, which gives A for
every i..j; then over hosts with the bandwidth across, where that A of a whole host takes the place of comp. Elsewhere
there is one level, with the slowest bandwidth.

PipeDream updates after every minibatch, so to its program a synchronisation follows each micro-batch; that the flush
has one a step, it does not know. As the size of the minibatch is its user's choice, several are planned for and each
plan is run with every number of micro-batches. A stage on m devices needs m rows of the minibatch, and its weights,
gradients and optimiser must fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.plan import Plan
from plait.search.baselines.blocks import Array, Blocks, Numbers, between, blocks_of
from plait.search.baselines.choose import Option, best_plan, micro_batch_counts, options, spread
from plait.search.baselines.fits import weights_fit
from plait.search.baselines.layout import Layout
from plait.search.baselines.setting import Setting
from plait.search.problem import Problem

_MOST_BLOCKS = 64
_SIZES = 4
Stage = tuple[int, int, int]  # first block, the block after its last, replicas


def pipedream(problem: Problem) -> Plan:
    return best_plan("pipedream", problem, pipedream_options(problem))


def pipedream_options(problem: Problem) -> Iterator[Option]:
    setting = Setting(problem)
    blocks = blocks_of(problem, _MOST_BLOCKS)
    sizes = [problem.batch_size / n for n in spread(micro_batch_counts(problem, 1).tolist(), _SIZES)]
    found = dict.fromkeys(_stages(setting, blocks, rows) for rows in sizes)
    for stages in found:
        if stages:
            yield from options(_layout(setting, blocks, stages), "1f1b")


@dataclass(frozen=True)
class Level:
    """What the program needs to know of one level: `units` that are devices, or hosts.

    `alone` is [i, j], the time of blocks i..j-1 on one unit; `weights` their bytes; `sent` the bytes before each
    block; `replicable` whether they may be on several units. A stage takes at most `most_replicas`.
    """

    alone: Array
    weights: Array
    sent: Array
    replicable: NDArray[np.bool_]
    bandwidth: float
    units: int
    most_replicas: int

    def stage_seconds(self, replicas: int) -> Array:
        """T1 as [i, j]."""
        if replicas == 1:
            return self.alone
        synced = 4 * (replicas - 1) * self.weights / (replicas * self.bandwidth)
        allowed = self.replicable & (replicas <= self.most_replicas)
        return np.where(allowed, (self.alone + synced) / replicas, np.inf)

    def solve(self, first: int = 0) -> tuple[Array, Numbers, Numbers]:
        """A(first, j, m) as [m, j], and the k and m' of its last stage (m' is m where that stage is the only one)."""
        size = len(self.sent)
        best = np.full((self.units + 1, size), np.inf)
        parted, replicas = (np.zeros((self.units + 1, size), dtype=np.int64) for _ in range(2))
        stage = [np.zeros(0), *(self.stage_seconds(m) for m in range(1, self.units + 1))]
        for m in range(1, self.units + 1):
            best[m], parted[m], replicas[m] = stage[m][first], first, m
            for last in range(1, m):
                before = np.maximum(best[m - last], 2 * self.sent / (self.bandwidth * last))
                time = np.maximum(before[:, None], stage[last])
                choice = np.argmin(time, axis=0)
                least = np.take_along_axis(time, choice[None], axis=0)[0]
                better = least < best[m]
                best[m] = np.where(better, least, best[m])
                parted[m] = np.where(better, choice, parted[m])
                replicas[m] = np.where(better, last, replicas[m])
        return best, parted, replicas

    def best_stages(self, first: int, end: int) -> tuple[Stage, ...]:
        """The stages of blocks first..end-1, on as many units as is best; none where there is no way."""
        best, parted, replicas = self.solve(first)
        units, stages = int(np.argmin(best[:, end])), []
        if np.isinf(best[units, end]):
            return ()
        while end > first:
            start, last = int(parted[units, end]), int(replicas[units, end])
            stages.append((start, end, last))
            units, end = units - last, start
        return tuple(reversed(stages))


def levels(setting: Setting, blocks: Blocks, rows: float) -> tuple[Level, ...]:
    """One level, or that of the devices in a host and that of the hosts."""
    network = setting.network
    device = setting.devices[0]
    alone = between(blocks.seconds(setting.kind, rows) / setting.speeds[device])
    alone = np.where(weights_fit(setting, blocks), alone, np.inf)
    common = (between(blocks.weights), blocks.crossing(rows), blocks.replicable)
    hosts, devices = len(network.hosts), len(network.hosts[0])
    if hosts == 1 or devices == 1 or {len(host) for host in network.hosts} != {devices}:
        slowest = min(network.inside.bandwidth, network.across.bandwidth)
        return (Level(alone, *common, slowest, len(setting.devices), int(rows)),)
    inside = Level(alone, *common, network.inside.bandwidth, devices, int(rows))
    in_one_host = np.stack([inside.solve(first)[0].min(axis=0) for first in range(len(blocks))])
    in_one_host = np.vstack([in_one_host, np.full(len(blocks) + 1, np.inf)])
    across = Level(in_one_host, *common, network.across.bandwidth, hosts, int(rows // devices))
    return inside, across


def _stages(setting: Setting, blocks: Blocks, rows: float) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """First block, the block after the last and the devices of every stage."""
    found = levels(setting, blocks, rows)
    hosts = setting.network.hosts if len(found) > 1 else tuple((device,) for device in setting.devices)
    stages = []
    next_host = 0
    for start, end, replicas in found[-1].best_stages(0, len(blocks)):
        own = hosts[next_host : next_host + replicas]
        next_host += replicas
        if len(found) == 1:
            stages.append((start, end, tuple(device for host in own for device in host)))
            continue
        next_device = 0
        for inner_start, inner_end, inner in found[0].best_stages(start, end):
            places = range(next_device, next_device + inner)
            next_device += inner
            stages.append((inner_start, inner_end, tuple(host[place] for host in own for place in places)))
    return tuple(stages)


def _layout(setting: Setting, blocks: Blocks, stages: tuple[tuple[int, int, tuple[int, ...]], ...]) -> Layout:
    boundaries = blocks.atoms([start for start, _, _ in stages[1:]])
    return Layout(setting, boundaries, tuple(devices for _, _, devices in stages))
