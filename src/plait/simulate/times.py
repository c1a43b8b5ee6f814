"""Times of a program's instructions on a cluster: the cost model as the event engine asks for it."""

import math
from dataclasses import dataclass, field
from functools import cached_property

from plait.cost import Costs, Phase, sync_seconds
from plait.plan import Plan
from plait.program import Instruction, Op, Program

_PHASES: dict[Op, tuple[Phase, ...]] = {
    Op.F: ("forward",),
    Op.B: ("backward",),
    Op.I: ("input",),
    Op.W: ("weight",),
}


@dataclass(frozen=True)
class Times:
    """Looks seconds up by rank and instruction; everything is cached by what it depends on."""

    program: Program
    plan: Plan
    costs: Costs
    _inside: dict[object, float] = field(default_factory=dict, repr=False, compare=False)

    def compute(self, rank: int, op: Op, stage: int, rows: int) -> float:
        device = self.plan.cluster.devices[self.plan.devices[rank]]
        table = self.program.stages[stage]
        phases = _PHASES[op]
        if table.recompute and op in (Op.B, Op.I):
            phases = ("forward", *phases)
        seconds = sum(self.costs.seconds(device.kind.name, p, table.start, table.end, rows) for p in phases)
        return seconds / device.speed

    def inside(self, rank: int, what: Instruction, computation: Instruction) -> float:
        """After how many seconds of a computation something happens inside it, nobody else on the device."""
        device = self._alike[rank]
        key = device, what[0], what[3], computation[0], computation[1], computation.rows
        found = self._inside.get(key)
        if found is None:
            found = self._inside[key] = self._seconds_before(rank, what, computation)
        return found

    def _seconds_before(self, rank: int, what: Instruction, computation: Instruction) -> float:
        device = self.plan.cluster.devices[self.plan.devices[rank]]
        table = self.program.stages[computation.stage]
        if what.op is Op.SEND:
            first, last = table.start, self.program.edge_by_name[what.name].value.producer + 1
        else:
            bucket = self.program.bucket_by_name[what.name]
            readers = next(found for found in bucket.readers if table.start <= found[0] < table.end)
            if computation.op is Op.F:
                first, last = table.start, readers[0]
            elif computation.op is Op.W:
                first, last = table.start, readers[1] + 1
            else:
                first, last = readers[0], table.end
        (phase,) = _PHASES[computation.op]
        seconds = self.costs.seconds(device.kind.name, phase, first, last, computation.rows) if first < last else 0.0
        if table.recompute and computation.op in (Op.B, Op.I):
            seconds += self.costs.seconds(device.kind.name, "forward", table.start, table.end, computation.rows)
        return seconds / device.speed

    def step(self, rank: int, bucket: str) -> float:
        device = self.plan.cluster.devices[self.plan.devices[rank]]
        found = self.program.bucket_by_name[bucket]
        cost = self.costs.optimizer[device.kind.name]
        return cost.seconds(found.num_bytes, len(found.parameters)) / device.speed

    def reduce(self, bucket: str) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Seconds of a sum over the bucket's ranks, and how long it keeps which channel busy."""
        found = self.program.bucket_by_name[bucket]
        devices = [self.plan.devices[rank] for rank in found.ranks]
        return sync_seconds(self.plan.sync, found.num_bytes, devices, self.plan.cluster)

    @cached_property
    def _alike(self) -> list[int]:
        """By rank, a number that ranks on equal devices share."""
        devices = [self.plan.cluster.devices[device] for device in self.plan.devices]
        numbers: dict[tuple[str, float], int] = {}
        return [numbers.setdefault((device.kind.name, device.speed), len(numbers)) for device in devices]

    @cached_property
    def meeting(self) -> float:
        """A number agreed by all ranks: a tree up and down."""
        devices = self.plan.devices
        if len(devices) == 1:
            return 0.0
        latency = max(self.plan.cluster.latency(devices[0], device) for device in devices[1:])
        return 2 * math.ceil(math.log2(len(devices))) * latency
