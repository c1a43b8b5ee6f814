"""Layouts to start from: the dynamic program over device orders, grains and numbers of micro-batches.

In two rounds: a rough one on few edges and round numbers of replicas tells which of these are worth the fine one, the
best first.
"""

import math
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, permutations, product
from typing import NamedTuple

from plait.search.device_order import device_order
from plait.search.groups import Group, Groups, grouped, num_replicas, tensor_of
from plait.search.layout import Layout, layout_of
from plait.search.limits import Limits
from plait.search.loads import Loads, coarse_loads, whole_chain
from plait.search.partition import balanced_boundaries
from plait.search.prm import MOST_STAGES, Asked, shapes
from plait.search.problem import Problem
from plait.search.wishes import Wishes

_EDGES, _FEWER_EDGES = 64, 40  # of the coarse chain, for few and for many devices
_ROUGH_EDGES = 24
_FINER = 3  # times what the rough run took
_BLOCKS = 32  # of devices that the dynamic program deals out
_FEW = 4  # devices of which every order is tried
_KEPT = 4  # layouts of each run


class _Run(NamedTuple):
    """What the dynamic program is asked once.

    Where layers may be shared, it is asked again with that allowed: some stages may be the better for it.
    """

    asked: Asked
    order: list[int]
    grain: int


def seeds(
    problem: Problem, rough: Loads, coarse: Loads, groups: Groups, wishes: Wishes, limits: Limits, deadline: float
) -> Iterator[Layout]:
    """Layouts worth looking at; at least those of the first run that finds any."""
    runs = list(_runs(problem, wishes, limits))
    promised: dict[int, float] = {}
    rough_seconds: dict[int, float] = {}
    none_yet = True
    if wishes.replicas is None and len(runs) > 1:
        half = (time.perf_counter() + deadline) / 2
        by_asked: dict[Asked, float] = {}
        order_of_all = max(runs, key=lambda run: len(run.order)).order
        for of_all in (True, False):  # it tells which numbers of micro-batches are worth the other orders
            some = [number for number, run in enumerate(runs) if (run.order is order_of_all) is of_all]
            for number in sorted(some, key=lambda number: by_asked.get(runs[number].asked, 0.0)):
                if not none_yet and time.perf_counter() > half:
                    break
                run, start = runs[number], time.perf_counter()
                found = shapes(rough, problem.costs, groups, run.order, run.asked, limits, run.grain, aligned=True)
                rough_seconds[number] = time.perf_counter() - start
                promised[number] = min((shape.estimate for shape in found), default=math.inf)
                by_asked[run.asked] = min(by_asked.get(run.asked, math.inf), promised[number])
                none_yet = none_yet and not found
                if len(run.asked.tensor) > 1 and not any(_shares_layers(shape.groups) for shape in found):
                    promised[number] = math.inf  # the same run without says as much, and sooner
                yield from (layout_of(shape, run.asked.micro_batches) for shape in found[:_KEPT])
    for number in sorted(range(len(runs)), key=lambda number: promised.get(number, math.inf)):
        if not none_yet and time.perf_counter() + _FINER * rough_seconds.get(number, 0.0) > deadline:
            return
        run = runs[number]
        found = shapes(coarse, problem.costs, groups, run.order, run.asked, limits, run.grain)
        none_yet = none_yet and not found
        yield from (layout_of(shape, run.asked.micro_batches) for shape in found[:_KEPT])


def _shares_layers(groups: Sequence[Group]) -> bool:
    return any(tensor_of(group) > 1 for group in groups)


def _runs(problem: Problem, wishes: Wishes, limits: Limits) -> Iterator[_Run]:
    orders = _orders(problem)
    for tensor, micro_batches in product(_degrees(problem, wishes), micro_batch_counts(problem, wishes)):
        rows = math.ceil(problem.batch_size / micro_batches)
        for order, num_stages in product(orders, _stage_counts(wishes, limits)):
            asked = Asked(
                micro_batches,
                rows,
                recompute=wishes.recompute,
                holds_all=wishes.schedule == "gpipe",
                num_stages=num_stages,
                replicas=wishes.replicas,
                tensor=tensor,
            )
            for grain in _grains(len(order), wishes):
                if grain <= rows * max(tensor):
                    yield _Run(asked, order, grain)


def _degrees(problem: Problem, wishes: Wishes) -> list[tuple[int, ...]]:
    """Numbers of devices to a replica that the dynamic program may mix, each set of them with runs of its own."""
    known = sorted(one.degree for one in whole_chain(problem.graph, problem.costs))
    if wishes.tensor is not None:
        return [(wishes.tensor,)]
    return [(1,), (1, *known)] if known else [(1,)]


def coarse_for(problem: Problem, loads: Loads, limits: Limits) -> Loads:
    """The edges that the dynamic program looks at."""
    edges = _EDGES if len(problem.cluster.devices) <= _BLOCKS else _FEWER_EDGES
    return coarse_loads(loads, edges, limits.forced, limits.barred)


def rough_for(loads: Loads, limits: Limits) -> Loads:
    """The edges of the first round."""
    return coarse_loads(loads, _ROUGH_EDGES, limits.forced, limits.barred)


def least_memory(problem: Problem, wishes: Wishes, limits: Limits) -> Layout:
    """As many stages as may be, each with a device or what the user fixed, of micro-batches as small as may be."""
    devices = device_order(problem.cluster)
    most = min(len(devices), max(limits.stage_counts), MOST_STAGES)
    tensor = wishes.tensor or 1
    sizes = wishes.replicas or (tensor,) * (wishes.num_stages or max(most // tensor, 1))
    ends = list(accumulate(sizes))
    groups = [grouped(devices[end - size : end], tensor) for end, size in zip(ends, sizes, strict=True)]
    count = wishes.micro_batches or problem.batch_size // max(map(num_replicas, groups))
    rows = math.ceil(problem.batch_size / count)
    boundaries = balanced_boundaries(problem.graph, problem.costs, problem.cluster, groups, rows, limits)
    return Layout(tuple(boundaries), tuple(groups), (wishes.recompute is not False,) * len(groups), count)


def micro_batch_counts(problem: Problem, wishes: Wishes) -> list[int]:
    """Powers of two up to a row each, those first that give every device a few micro-batches of a few rows."""
    fixed = wishes.micro_batches or problem.micro_batches
    if fixed is not None:
        return [fixed]
    counts = [2**k for k in range(problem.batch_size.bit_length()) if 2**k <= problem.batch_size]
    likely = 4 * math.sqrt(len(problem.cluster.devices))
    return sorted(counts, key=lambda count: abs(math.log2(count / likely)))


def _stage_counts(wishes: Wishes, limits: Limits) -> Sequence[int | None]:
    if wishes.num_stages is not None:
        return [wishes.num_stages]
    if limits.held:
        return sorted(limits.stage_counts)[:16]
    return [None]


def _grains(num_devices: int, wishes: Wishes) -> list[int]:
    """Devices are dealt one by one where there are few; of many, in blocks of several sizes."""
    if wishes.replicas is not None:
        return [math.gcd(*wishes.replicas)]
    if num_devices <= _BLOCKS:
        return [1]
    return [2**k for k in reversed(range(num_devices.bit_length())) if _BLOCKS // 4 <= num_devices // 2**k <= _BLOCKS]


def _orders(problem: Problem) -> list[list[int]]:
    """The order of minimum cuts and its reverse, one device of each host after the other, all orders of a few; and
    where there are several hosts, one, two, four, … of them alone: a slow network may not be worth crossing."""
    cluster = problem.cluster
    order = device_order(cluster)
    if len(order) <= _FEW:
        return _different([list(some) for some in permutations(order)], problem)
    hosts = [[d for d in order if cluster.devices[d].host == host.name] for host in cluster.hosts]
    across = [d for rank in range(max(map(len, hosts))) for host in hosts if rank < len(host) for d in (host[rank],)]
    packed = sorted(hosts, key=lambda host: -sum(cluster.devices[d].sustained_flops_per_second for d in host))
    ends = [sum(map(len, packed[: 2**k])) for k in range(len(hosts).bit_length()) if 2**k < len(hosts)]
    inside = [[device for host in packed for device in host][:end] for end in ends]
    return _different([order, order[::-1], across, *inside], problem)


def _different(orders: list[list[int]], problem: Problem) -> list[list[int]]:
    """Orders that differ in more than the names of devices: in kinds, or in what connects neighbours."""
    cluster = problem.cluster

    def looks(order: list[int]) -> tuple[object, ...]:
        devices = [cluster.devices[d] for d in order]
        between = [cluster.bandwidth(a, b) for n, a in enumerate(order) for b in order[n + 1 : n + 9]]
        return (*((d.kind.name, d.speed, d.memory_bytes) for d in devices), *between)

    return list({looks(order): order for order in reversed(orders)}.values())[::-1]
