"""How ranks sum a gradient bucket: `Plan.sync` by torch.distributed's collectives.

A sum of several rounds begins its first at once and the others when it is waited for. All ranks of a group begin
their sums in one order and wait for them in one order (the static check has proved both), and each group of ranks has
process groups of its own for every round, so collectives match.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from plait.cost.synchronisation import by_host
from plait.plan import Plan
from plait.program import Program
from plait.run.transport import Pending, Transport

Ranks = tuple[int, ...]
Round = Callable[[], list[Pending]]


@dataclass(frozen=True)
class Summing:
    """The strategy of a plan, and the host of every rank."""

    name: str
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> "Summing":
        return cls(plan.sync, tuple(plan.cluster.devices[device].host for device in plan.devices))

    def groups(self, ranks: Ranks) -> list[tuple[str, Ranks]]:
        """The process groups that a sum over `ranks` needs, the same list on every rank."""
        if self.name == "parameter-server":
            return [(_purpose(what, ranks), ranks) for what in ("up", "down")]
        hosts = self._hosts(ranks)
        if self.name == "ring" or _is_flat(hosts):
            return [("gradients", ranks)]
        within = [(_purpose(what, ranks), host) for host in hosts for what in ("up", "down")]
        return within + [(_purpose("across", ranks), owners) for owners in _owners(hosts)]

    def start(self, transport: Transport, tensor: Tensor, ranks: Ranks) -> Pending:
        """Begins the sum; once waited for, `tensor` holds it, the same on all ranks."""
        if self.name == "parameter-server":
            server, up, down = ranks[0], _purpose("up", ranks), _purpose("down", ranks)
            return _Rounds(
                lambda: [transport.reduce(tensor, ranks, server, up)],
                lambda: [transport.broadcast(tensor, ranks, server, down)],
            )
        hosts = self._hosts(ranks)
        if self.name == "ring" or _is_flat(hosts):
            return transport.all_reduce(tensor, ranks)
        return _hierarchical(transport, tensor, ranks, hosts)

    def _hosts(self, ranks: Ranks) -> list[Ranks]:
        return [tuple(group) for group in by_host(ranks, lambda rank: self.hosts[rank])]


def groups_of_program(program: Program, summing: Summing) -> list[tuple[str, Ranks]]:
    """The process groups of a program's gradient sums and of its replicas that exchange statistics."""
    groups = [group for bucket in program.buckets for group in summing.groups(bucket.ranks)]
    return groups + [("exchange", stage.ranks) for stage in program.stages if stage.coupled]


def _hierarchical(transport: Transport, tensor: Tensor, ranks: Ranks, hosts: Sequence[Ranks]) -> Pending:
    """Each shard is summed within the host at its owner, then between the owners, then given to the host.

    There are as many shards as the fewest ranks in a host.
    """
    (own,) = (host for host in hosts if transport.rank in host)
    owners = _owners(hosts)
    shards = list(zip(tensor.tensor_split(len(owners)), own, owners, strict=False))
    shards = [shard for shard in shards if shard[0].numel() > 0]
    up, across, down = (_purpose(what, ranks) for what in ("up", "across", "down"))
    return _Rounds(
        lambda: [transport.reduce(part, own, owner, up) for part, owner, _ in shards],
        lambda: [
            transport.all_reduce(part, others, across) for part, owner, others in shards if owner == transport.rank
        ],
        lambda: [transport.broadcast(part, own, owner, down) for part, owner, _ in shards],
    )


def _is_flat(hosts: Sequence[Ranks]) -> bool:
    """With one host, or one rank in each, a hierarchy has one level, and its only round can begin at once."""
    return len(hosts) == 1 or all(len(host) == 1 for host in hosts)


def _owners(hosts: Sequence[Ranks]) -> list[Ranks]:
    """Per shard, the rank of each host that sums it."""
    return [tuple(host[shard] for host in hosts) for shard in range(min(map(len, hosts)))]


def _purpose(what: str, ranks: Ranks) -> str:
    return f"{what} {'-'.join(map(str, ranks))}"


class _Rounds:
    """Collectives of which each round needs the one before."""

    def __init__(self, first: Round, *later: Round) -> None:
        self._pending = first()
        self._later = later

    def wait(self) -> None:
        for pending in self._pending:
            pending.wait()
        for start in self._later:
            for pending in start():  # all of them are under way before the first is waited for
                pending.wait()
