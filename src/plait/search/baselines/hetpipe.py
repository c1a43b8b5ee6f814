"""HetPipe at clock distance 0: virtual workers of several devices, each a pipeline, summing gradients every step.

Devices become virtual workers of k devices each, dealt in one of two of HetPipe's ways:

- node partition: a worker's devices are one host's (k >= 2 divides the devices of every host),
- equal distribution: a worker takes its devices from the hosts in turn (k is a multiple of the hosts' number);

where the hosts allow neither, one worker has all devices in file order. In each worker the blocks are parted
contiguously so that the longest stage is shortest, what a stage takes being its compute and what it receives in both
directions, among the partitions that fit in memory:

    W(s, l) = min over l' < l of max( W(s-1, l'), max over workers of compute + (c_f + c_b)(l') )

A `Plan` has one partition for all replicas, so all workers share one: stage s's replicas are the s-th devices of every
worker, with rows in proportion to their speed, and clock distance 0 makes the parameter server an all-reduce.
"""

from collections.abc import Iterator
from itertools import chain, zip_longest
from math import gcd

import numpy as np

from plait.plan import Plan
from plait.search.baselines.blocks import Array, Blocks, between, blocks_of
from plait.search.baselines.choose import Option, best_plan, micro_batch_counts, options, spread
from plait.search.baselines.fits import fits_on
from plait.search.baselines.layout import Layout
from plait.search.baselines.min_max import min_max
from plait.search.baselines.setting import Setting
from plait.search.problem import Problem

_MOST_BLOCKS = 100
_SIZES = 3  # of micro-batches that partitions are found for; each is then run with every number of them

Workers = tuple[tuple[int, ...], ...]


def hetpipe(problem: Problem) -> Plan:
    return best_plan("hetpipe", problem, hetpipe_options(problem))


def hetpipe_options(problem: Problem) -> Iterator[Option]:
    setting = Setting(problem)
    blocks = blocks_of(problem, _MOST_BLOCKS)
    for workers in virtual_workers(setting.network.hosts):
        if len(workers[0]) > len(blocks):
            continue
        counts = micro_batch_counts(setting.problem, len(workers))
        groups = tuple(zip(*workers, strict=True))
        for count in spread(counts.tolist(), _SIZES):
            rows = setting.problem.batch_size / count
            shares = tuple(tuple(_speeds(setting, blocks, group)) for group in groups)
            bottleneck, boundaries = min_max(_loads(setting, blocks, groups, shares, rows, count))[-1]
            if np.isfinite(bottleneck):
                yield from options(Layout(setting, blocks.atoms(boundaries), groups, shares), "1f1b")


def virtual_workers(hosts: tuple[tuple[int, ...], ...]) -> list[Workers]:
    """All the ways to deal the devices of `hosts`, each once.

    >>> virtual_workers(((0, 1), (2, 3)))
    [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 2, 1, 3),)]
    >>> virtual_workers(((0, 1), (2,)))
    [((0, 2, 1),), ((0, 1, 2),)]
    """
    in_order = list(chain.from_iterable(hosts))
    in_turn = [device for round_ in zip_longest(*hosts) for device in round_ if device is not None]
    per_host = gcd(*map(len, hosts))
    found = [_cut(in_order, size) for size in range(2, per_host + 1) if per_host % size == 0]
    if len(hosts) > 1:
        sizes = range(len(hosts), len(in_order) + 1, len(hosts)) if len(set(map(len, hosts))) == 1 else [len(in_order)]
        found += [_cut(in_turn, size) for size in sizes if len(in_order) % size == 0]
    if per_host == 1:
        found.append(_cut(in_order, len(in_order)))
    return list(dict.fromkeys(found))


def _cut(devices: list[int], size: int) -> Workers:
    return tuple(tuple(devices[first : first + size]) for first in range(0, len(devices), size))


def _speeds(setting: Setting, blocks: Blocks, group: tuple[int, ...]) -> Iterator[float]:
    """Rows a second through the whole model, per device."""
    for device in group:
        seconds = blocks.seconds(setting.kinds[device], 1.0)[-1] - blocks.seconds(setting.kinds[device], 0.0)[-1]
        yield float(setting.speeds[device] / seconds) if seconds > 0 else 1.0


def _loads(
    setting: Setting,
    blocks: Blocks,
    groups: tuple[tuple[int, ...], ...],
    shares: tuple[tuple[float, ...], ...],
    rows: float,
    micro_batches: int,
) -> Iterator[Array]:
    """Per stage [start, end]: seconds of a micro-batch's compute and receiving, infinite where memory is short."""
    before: tuple[int, ...] | None = None
    for stage, (group, own) in enumerate(zip(groups, shares, strict=True)):
        load = np.zeros((len(blocks) + 1,) * 2)
        for device, share in {
            (_alike(setting, d)): (d, s / sum(own)) for d, s in zip(group, own, strict=True)
        }.values():
            compute = blocks.seconds(setting.kinds[device], rows * share) / setting.speeds[device]
            fits = fits_on(setting, blocks, device, rows * share, min(len(groups) - stage, micro_batches))
            load = np.maximum(load, np.where(fits, between(compute), np.inf))
        if before is not None:
            link = setting.network.channel(before, group)
            load = load + 2 * (link.latency + blocks.crossing(rows) / link.bandwidth)[:, None]
        if len(group) > 1:
            load = np.where(blocks.replicable, load, np.inf)
        yield load
        before = group


def _alike(setting: Setting, device: int) -> tuple[str, float, float]:
    return setting.kinds[device], float(setting.speeds[device]), float(setting.memory[device])
