"""How ranks sum a gradient bucket: `Plan.sync` by torch.distributed's collectives.

Sums of several rounds are done by a thread for each group of ranks, one after the other. All ranks of a group begin
their sums in one order (the static check has proved it), and each group of ranks has process groups of its own for
every round, so collectives match.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

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
    _turns: dict[Ranks, "_InTurn"] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, plan: Plan) -> "Summing":
        return cls(plan.sync, tuple(plan.cluster.devices[device].host for device in plan.devices))

    def groups(self, ranks: Ranks) -> list[tuple[str, Ranks]]:
        """The process groups that a sum over `ranks` needs, the same list on every rank."""
        if self.name == "parameter-server":
            return [(_purpose(what, ranks), ranks) for what in ("up", "down")]
        hosts = self._hosts(ranks)
        if self.name == "ring" or _is_flat(hosts):
            return [("gradients", _ring(hosts))]
        owners = _owners(hosts)
        ways = [_purpose(what, ranks, shard) for what in ("up", "down") for shard in range(len(owners))]
        within = [(way, host) for host in hosts for way in ways]
        return within + [(_purpose("across", ranks), others) for others in owners]

    def start(self, transport: Transport, tensor: Tensor, ranks: Ranks) -> Pending:
        """Begins the sum; once waited for, `tensor` holds it, the same on all ranks."""
        if self.name == "parameter-server":
            server, up, down = ranks[0], _purpose("up", ranks), _purpose("down", ranks)
            return self._in_turn(ranks).add(
                (
                    lambda: [transport.reduce(tensor, ranks, server, up)],
                    lambda: [transport.broadcast(tensor, ranks, server, down)],
                )
            )
        hosts = self._hosts(ranks)
        if self.name == "ring" or _is_flat(hosts):
            return transport.all_reduce(tensor, _ring(hosts))
        return self._in_turn(ranks).add(_hierarchical(transport, tensor, ranks, hosts))

    def _in_turn(self, ranks: Ranks) -> "_InTurn":
        if ranks not in self._turns:
            self._turns[ranks] = _InTurn()
        return self._turns[ranks]

    def _hosts(self, ranks: Ranks) -> list[Ranks]:
        return [tuple(group) for group in by_host(ranks, lambda rank: self.hosts[rank])]


def groups_of_program(program: Program, summing: Summing) -> list[tuple[str, Ranks]]:
    """The process groups of a program's gradient sums and of its replicas that exchange statistics."""
    groups = [group for bucket in program.buckets for group in summing.groups(bucket.ranks)]
    coupled = [stage for stage in program.stages if stage.coupled]
    return groups + [("exchange", s.ranks[place :: s.tensor]) for s in coupled for place in range(s.tensor)]


def _hierarchical(transport: Transport, tensor: Tensor, ranks: Ranks, hosts: Sequence[Ranks]) -> Sequence[Round]:
    """Each shard is summed within the host at its owner, then between the owners, then given to the host.

    There are as many shards as the fewest ranks in a host. Each has process groups of its own, for a group does no more
    than two things at once, and shards that wait for others' leave links idle.
    """
    (own,) = (host for host in hosts if transport.rank in host)
    owners = _owners(hosts)
    shards = [
        (part, own[index], owners[index], _purpose("up", ranks, index), _purpose("down", ranks, index))
        for index, part in enumerate(tensor.tensor_split(len(owners)))
        if part.numel() > 0
    ]
    across = _purpose("across", ranks)
    return (
        lambda: [transport.reduce(part, own, owner, up) for part, owner, _, up, _ in shards],
        lambda: [
            transport.all_reduce(part, others, across)
            for part, owner, others, _, _ in shards
            if owner == transport.rank
        ],
        lambda: [transport.broadcast(part, own, owner, down) for part, owner, _, _, down in shards],
    )


def _is_flat(hosts: Sequence[Ranks]) -> bool:
    """With one host, or one rank in each, a hierarchy has one level, and its only round can begin at once."""
    return len(hosts) == 1 or all(len(host) == 1 for host in hosts)


def _owners(hosts: Sequence[Ranks]) -> list[Ranks]:
    """Per shard, the rank of each host that sums it."""
    return [tuple(host[shard] for host in hosts) for shard in range(min(map(len, hosts)))]


def _ring(hosts: Sequence[Ranks]) -> Ranks:
    """The order in which a sum goes round: the hosts one after the other, as the cost model has it."""
    return tuple(rank for host in hosts for rank in host)


def _purpose(what: str, ranks: Ranks, shard: int = 0) -> str:
    return f"{what} {shard} {'-'.join(map(str, ranks))}"


class _InTurn:
    """A thread that does the sums of one group of ranks one after the other, so that they go on while others compute.

    A sum's next round begins when the one before is done, not when somebody waits for the sum.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Sequence[Round], Future[None]]] = deque()
        self._lock = threading.Lock()
        self._working = False

    def add(self, rounds: Sequence[Round]) -> "_Promised":
        done: Future[None] = Future()
        with self._lock:
            self._waiting.append((rounds, done))
            if not self._working:
                self._working = True
                # A daemon: a process that fails must not wait for a sum that never comes.
                threading.Thread(target=self._work, daemon=True).start()
        return _Promised(done)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._working = False
                    return
                rounds, done = self._waiting.popleft()
            try:
                for start in rounds:
                    for pending in start():  # all of them are under way before the first is waited for
                        pending.wait()
                done.set_result(None)
            except Exception as error:  # noqa: BLE001 - it is raised where the sum is waited for
                done.set_exception(error)


class _Promised:
    """A sum that another thread is doing."""

    def __init__(self, done: "Future[None]") -> None:
        self._done = done

    def wait(self) -> None:
        self._done.result()

    def done(self) -> bool:
        return self._done.done()
