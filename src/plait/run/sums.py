"""The gradient sums of a program: a synchronizer for each group of ranks, by `Plan.sync`.

All ranks of a group begin their sums in one order (the static check has proved it), and each group of ranks has process
groups of its own, so what ranks do for a sum matches.
"""

from dataclasses import dataclass, field

from torch import Tensor

from plait.plan import Plan
from plait.program import Program
from plait.run.transport import Pending, Transport
from plait.sync import Synchronizer, strategy_of
from plait.sync.chunks import CHUNK_BYTES
from plait.sync.collectives import Group
from plait.sync.hosts import Ranks, by_host
from plait.sync.places import SwitchPlace
from plait.sync.ring import Ring
from plait.sync.strategy import Strategy


@dataclass(frozen=True)
class Sums:
    """The strategy of a plan, and the host of every rank."""

    name: str
    hosts: tuple[str, ...]
    chunk_bytes: int = CHUNK_BYTES
    _synchronizers: dict[Ranks, Synchronizer] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, plan: Plan) -> "Sums":
        return cls(plan.sync, tuple(plan.cluster.devices[device].host for device in plan.devices))

    def groups(self, ranks: Ranks) -> list[Group]:
        """The process groups that a sum over `ranks` needs, the same list on every rank."""
        return self._strategy(ranks).groups()

    def start(self, transport: Transport, tensor: Tensor, ranks: Ranks, name: str) -> Pending:
        """Begins the sum; once waited for, `tensor` holds it, the same on all ranks."""
        if ranks not in self._synchronizers:
            self._synchronizers[ranks] = Synchronizer(self._strategy(ranks), transport)
        synchronizer = self._synchronizers[ranks]
        if tensor.is_cuda and isinstance(synchronizer.strategy, Ring):
            # A future on a GPU is done when its sum is queued; the executor asks when it is there.
            return synchronizer.strategy.start(transport, tensor)
        return synchronizer.all_reduce(tensor, name)

    def close(self) -> None:
        """There will be no more sums; all there were have been waited for."""
        for synchronizer in self._synchronizers.values():
            synchronizer.close()

    def _strategy(self, ranks: Ranks) -> Strategy:
        hosts = by_host(ranks, lambda rank: self.hosts[rank])
        return strategy_of(
            self.name, [tuple(host) for host in hosts], SwitchPlace.of_environment(), chunk_bytes=self.chunk_bytes
        )


def check_sums(plan: Plan) -> None:
    """Raises PlaitError where the plan's gradients cannot be summed from here, for want of a switch."""
    sums = Sums.of(plan)
    for stage in range(len(plan.stages)):
        sums.groups(plan.stage_ranks(stage))


def groups_of_program(program: Program, sums: Sums) -> list[Group]:
    """The process groups of a program's gradient sums and of its replicas that exchange statistics."""
    groups = [group for bucket in program.buckets for group in sums.groups(bucket.ranks)]
    coupled = [stage for stage in program.stages if stage.coupled]
    return groups + [
        ("exchange", stage.ranks[place :: stage.tensor]) for stage in coupled for place in range(stage.tensor)
    ]
