"""Members of a sum by the hosts they are in, and who of them sums which shard."""

from collections.abc import Callable, Iterable, Sequence

Ranks = tuple[int, ...]


def by_host(members: Iterable[int], host_of: Callable[[int], str]) -> list[list[int]]:
    """`members` together with those of the same host, hosts in the order in which they first appear."""
    groups: dict[str, list[int]] = {}
    for member in members:
        groups.setdefault(host_of(member), []).append(member)
    return list(groups.values())


def is_flat(hosts: Sequence[Sequence[int]]) -> bool:
    """With one host, or one rank in each, a hierarchy has one level."""
    return len(hosts) == 1 or all(len(host) == 1 for host in hosts)


def owners(hosts: Sequence[Ranks]) -> list[Ranks]:
    """Per shard, the rank of each host that sums it. There are as many shards as the fewest ranks in a host.

    >>> owners([(0, 1), (2, 3, 4)])
    [(0, 2), (1, 3)]
    """
    return [tuple(host[shard] for host in hosts) for shard in range(min(map(len, hosts)))]


def ring_order(hosts: Sequence[Ranks]) -> Ranks:
    """The order in which a sum goes round: the hosts one after the other, as the cost model has it."""
    return tuple(rank for host in hosts for rank in host)
