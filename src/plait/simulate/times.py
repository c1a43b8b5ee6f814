"""Times of a program's instructions on a cluster: the cost model as the event engine asks for it."""

import math
from dataclasses import dataclass, field
from functools import cached_property

from plait.cost import Costs, GroupLinks, Phase, group_links, of_atoms, sync_seconds
from plait.graph.sharding import Sharding
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
    exchanging: bool = True  # also what tensor groups exchange inside a computation
    _inside: dict[object, float] = field(default_factory=dict, repr=False, compare=False)
    _links: dict[tuple[int, int], GroupLinks] = field(default_factory=dict, repr=False, compare=False)

    def compute(self, rank: int, op: Op, stage: int, rows: int) -> float:
        table = self.program.stages[stage]
        phases = _PHASES[op]
        if table.recompute and op in (Op.B, Op.I):
            phases = ("forward", *phases)
        return sum(self.phase(rank, stage, p, table.start, table.end, rows) for p in phases)

    def phase(self, rank: int, stage: int, phase: Phase, first: int, last: int, rows: int) -> float:
        """Of atoms `first..last-1` of a stage, with what a tensor group exchanges on the way."""
        device = self.plan.cluster.devices[self.plan.devices[rank]]
        seconds = self.costs_of(stage).seconds(device.kind.name, phase, first, last, rows) / device.speed
        own = self.plan.stages[stage]
        if own.tensor == 1 or phase == "weight" or not self.exchanging:
            return seconds
        along = "forward" if phase == "forward" else "backward"
        return seconds + self._links_of(rank, stage).exchange(
            of_atoms(self.sharding_of(stage), along, first, last), rows
        )

    def sharding_of(self, stage: int) -> Sharding:
        """How the devices of a replica share the stage."""
        own = self.plan.stages[stage]
        return self.costs.sharding(own.start, own.end, own.tensor, own.split)

    def costs_of(self, stage: int) -> Costs:
        """As they are on a device of the stage."""
        own = self.plan.stages[stage]
        return self.costs.on_group(own.start, own.end, own.tensor, own.split)

    def _links_of(self, rank: int, stage: int) -> GroupLinks:
        key = rank, stage
        if key not in self._links:
            groups = self.plan.stages[stage].groups
            own = next(group for group in groups if self.plan.devices[rank] in group)
            self._links[key] = group_links(own, groups, self.plan.cluster)
        return self._links[key]

    def inside(self, rank: int, what: Instruction, computation: Instruction) -> float:
        """After how many seconds of a computation something happens inside it, nobody else on the device."""
        device = self._alike[rank]
        key = device, what[0], what[3], computation[0], computation[1], computation.rows
        found = self._inside.get(key)
        if found is None:
            found = self._inside[key] = self._seconds_before(rank, what, computation)
        return found

    def _seconds_before(self, rank: int, what: Instruction, computation: Instruction) -> float:
        stage, rows = computation.stage, computation.rows
        table = self.program.stages[stage]
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
        seconds = self.phase(rank, stage, phase, first, last, rows) if first < last else 0.0
        if table.recompute and computation.op in (Op.B, Op.I):
            seconds += self.phase(rank, stage, "forward", table.start, table.end, rows)
        return seconds

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
