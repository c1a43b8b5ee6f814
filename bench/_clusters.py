"""The clusters of the planning benches: what people have, and what tells planners apart.

All devices are presets, so that a model is costed once for all of them.
"""

import random
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from types import MappingProxyType

from plait.cluster import PRESETS, Cluster, Device, Host, Link, parse_cluster

NVSWITCH = '{ bandwidth = "300 GB/s", latency = "3 us" }'
PCIE = '{ bandwidth = "12 GB/s", latency = "5 us" }'
GIGABIT = 1e9 / 8  # bytes per second


@cache
def clusters() -> Mapping[str, Cluster]:
    """By name, from the smallest setting to the largest."""
    found = [
        hosts("nvlink-8", 1, 8, "a100", in_host=NVSWITCH),
        *(hosts(f"{n}x4-{rate}g", n, 4, "v100", rate=rate) for n in (2, 4) for rate in (10, 25, 100)),
        hosts("8x8-100g", 8, 8, "a100", in_host=NVSWITCH, rate=100),
        mixed_cards(),
        one_slow_uplink(),
        unequal_hosts(),
        connectivity(8, seed=8),
        connectivity(16, seed=16),
        rack_tree(),
    ]
    return MappingProxyType({cluster.name: cluster for cluster in found})


def hosts(name: str, count: int, devices: int, kind: str, *, in_host: str = PCIE, rate: float = 25) -> Cluster:
    """Equal hosts around one switch, `rate` Gbit/s each."""
    return _parsed(name, _host("node", devices, kind, in_host, rate, count=count))


def mixed_cards() -> Cluster:
    """Two hosts of four V100s and two of four 1080 Tis on 25 Gbit/s."""
    return _parsed(
        "mixed-cards", _host("new", 4, "v100", PCIE, 25, count=2), _host("old", 4, "1080ti", PCIE, 25, count=2)
    )


def one_slow_uplink() -> Cluster:
    """Four hosts of four V100s on 25 Gbit/s, one of which got the old cable."""
    return _parsed("one-slow-uplink", _host("node", 4, "v100", PCIE, 25, count=3), _host("slow", 4, "v100", PCIE, 5))


def unequal_hosts() -> Cluster:
    """Four, two and one V100 on 25 Gbit/s."""
    parts = (_host(name, devices, "v100", PCIE, 25) for name, devices in (("four", 4), ("two", 2), ("one", 1)))
    return _parsed("unequal-4-2-1", *parts)


def rack_tree() -> Cluster:
    """Four racks of two hosts of four A100s: a rack's hosts send 200 Gbit/s, its uplink carries 50."""
    return _parsed(
        "rack-tree",
        _host("node", 4, "a100", NVSWITCH, 100, count=8, switch="rack"),
        '[[switches]]\nname = "rack"\ncount = 4\n'
        'uplink = { to = "spine", bandwidth = "50 Gbit/s", latency = "3 us" }\n[[switches]]\nname = "spine"\n',
    )


def connectivity(devices: int, *, seed: int) -> Cluster:
    """V100s in hosts of their own, joined by a random graph of links from 5 to 100 Gbit/s."""
    names = [f"node{number}/gpu0" for number in range(devices)]
    return _joined(f"graph-{devices}", names, ["v100"] * devices, random.Random(seed))


def random_cluster(seed: int) -> Cluster:
    """Equal hosts, unequal and mixed hosts, or a random graph; 2 to 16 devices."""
    draw = random.Random(seed)
    name = f"random-{seed}"
    kinds = draw.choice([["v100"], ["a100"], ["v100", "1080ti"], ["a100", "v100", "t4"]])
    if draw.random() < 1 / 3:
        size = draw.randint(2, 16)
        names = [f"node{number}/gpu0" for number in range(size)]
        return _joined(name, names, [draw.choice(kinds) for _ in names], draw)
    count = draw.randint(1, 4)
    equal = draw.random() < 0.5
    sizes = [draw.randint(2, 4)] * count if equal else [draw.randint(1, 4) for _ in range(count)]
    sizes[0] = max(sizes[0], 2)
    rates = [draw.choice([10, 25, 100])] * count if equal else [draw.choice([10, 25, 100]) for _ in range(count)]
    tier = draw.choice([PCIE, NVSWITCH])
    parts = (
        _host(f"node{number}", size, draw.choice(kinds), tier, rate)
        for number, (size, rate) in enumerate(zip(sizes, rates, strict=True))
    )
    return _parsed(name, *parts)


def _host(name: str, devices: int, kind: str, in_host: str, rate: float, *, count: int = 1, switch: str = "") -> str:
    to = f'to = "{switch}", ' if switch else ""
    return (
        f'[[hosts]]\nname = "{name}"\ncount = {count}\ndevices = [{{ kind = "{kind}", count = {devices} }}]\n'
        f'in_host = {in_host}\nuplink = {{ {to}bandwidth = "{rate} Gbit/s", latency = "10 us" }}\n'
    )


def _parsed(name: str, *parts: str) -> Cluster:
    return parse_cluster(f'name = "{name}"\n' + "".join(parts), source=name)


def _joined(name: str, devices: Sequence[str], kinds: Sequence[str], draw: random.Random) -> Cluster:
    """A random tree, so that all reach one another, and as many links again."""
    order = draw.sample(devices, len(devices))
    pairs = {frozenset((draw.choice(order[:place]), order[place])) for place in range(1, len(order))}
    others = [pair for pair in map(frozenset, combinations(devices, 2)) if pair not in pairs]
    chosen = [*pairs, *draw.sample(others, min(len(others), len(devices) - 1))]
    ends = sorted(sorted(pair, key=devices.index) for pair in chosen)
    rates, latencies = [5, 10, 25, 50, 100], [5e-6, 10e-6, 20e-6]
    return Cluster(
        name,
        tuple(Host(device.split("/")[0]) for device in devices),
        tuple(
            Device(device, device.split("/")[0], PRESETS[kind], PRESETS[kind].memory_bytes)
            for device, kind in zip(devices, kinds, strict=True)
        ),
        (),
        tuple(Link(a, b, draw.choice(rates) * GIGABIT, draw.choice(latencies)) for a, b in ends),
    )
