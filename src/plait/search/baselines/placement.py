"""DAPPLE's three ways to take devices for a stage; all as numbers of devices per host."""

from collections.abc import Iterable

Counts = tuple[int, ...]


def placements(sizes: Counts, used: Counts, devices: int) -> list[Counts]:
    """Devices to take from each host for a stage on `devices` more, where `used` are taken already; each way once.

    >>> placements((4, 4, 4), (2, 0, 0), 4)
    [(0, 4, 0), (2, 2, 0), (2, 1, 1)]
    >>> placements((4, 4, 4), (2, 2, 0), 2)
    [(0, 0, 2), (2, 0, 0), (1, 1, 0)]
    """
    hosts = range(len(sizes))
    fresh = [host for host in hosts if used[host] == 0]
    begun = [host for host in hosts if used[host] > 0]
    free = [size - taken for size, taken in zip(sizes, used, strict=True)]
    ways = (
        _filled(free, [*fresh, *begun], devices),
        _filled(free, [*begun, *fresh], devices),
        _scattered(free, [begun, fresh], devices),
    )
    return list(dict.fromkeys(ways))


def _filled(free: list[int], hosts: Iterable[int], devices: int) -> Counts:
    """One host after the other."""
    taken = [0] * len(free)
    for host in hosts:
        taken[host] = min(free[host], devices)
        devices -= taken[host]
    return tuple(taken)


def _scattered(free: list[int], tiers: Iterable[list[int]], devices: int) -> Counts:
    """Evenly from the hosts of the first tier, then from those of the next."""
    taken = [0] * len(free)
    for hosts in tiers:
        for place, host in enumerate(sorted(hosts, key=lambda host: free[host])):
            taken[host] = min(free[host], -(-devices // (len(hosts) - place)) if devices else 0)
            devices -= taken[host]
    return tuple(taken)
