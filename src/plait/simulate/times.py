"""Times of a program's instructions on a cluster: the cost model as the event engine asks for it."""

import math
from dataclasses import dataclass
from functools import cached_property

from plait.cost import Costs, ring_all_reduce_seconds
from plait.plan import Plan
from plait.program import Op, Program


@dataclass(frozen=True)
class Times:
    """Looks seconds up by rank and instruction; everything is cached by what it depends on."""

    program: Program
    plan: Plan
    costs: Costs

    def compute(self, rank: int, op: Op, stage: int, rows: int) -> float:
        device = self.plan.cluster.devices[self.plan.devices[rank]]
        table = self.program.stages[stage]
        phase = "forward" if op is Op.F else "backward"
        seconds = self.costs.seconds(device.kind.name, phase, table.start, table.end, rows)  # type: ignore[arg-type]
        if op in (Op.I, Op.W):  # halves of one backward
            seconds /= 2
        return seconds / device.speed

    def step(self, rank: int, bucket: str) -> float:
        device = self.plan.cluster.devices[self.plan.devices[rank]]
        found = self.program.bucket_by_name[bucket]
        cost = self.costs.optimizer[device.kind.name]
        return cost.seconds(found.num_bytes, len(found.parameters)) / device.speed

    def reduce(self, bucket: str) -> tuple[float, tuple[int, ...]]:
        """Seconds of a ring over the bucket's ranks, and the channels it keeps busy."""
        found = self.program.bucket_by_name[bucket]
        devices = [self.plan.devices[rank] for rank in found.ranks]
        pairs = list(zip(devices, devices[1:] + devices[:1], strict=True))
        cluster = self.plan.cluster
        slowest = min(cluster.bandwidth(a, b) for a, b in pairs)
        latency = max(cluster.latency(a, b) for a, b in pairs)
        channels = sorted({channel for a, b in pairs for channel in cluster.route(a, b)})
        return ring_all_reduce_seconds(found.num_bytes, len(devices), slowest, latency), tuple(channels)

    @cached_property
    def meeting(self) -> float:
        """A number agreed by all ranks: a tree up and down."""
        devices = self.plan.devices
        if len(devices) == 1:
            return 0.0
        latency = max(self.plan.cluster.latency(devices[0], device) for device in devices[1:])
        return 2 * math.ceil(math.log2(len(devices))) * latency
