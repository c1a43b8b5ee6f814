"""What if: a cluster with something about it changed, said in words such as "uplink=100 Gbit/s, hosts=16".

uplink, uplink_latency            the links from hosts to switches
in_host, in_host_latency          the links from devices to their hosts
switches, switches_latency        the links between switches
devices, memory, speed            every device's kind (with that kind's memory), its memory, its speed
hosts                             their number, where all of them are alike
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from plait.cluster.kinds import find_kind
from plait.cluster.parts import Device, Host, Link
from plait.cluster.presets import PRESETS
from plait.cluster.suggestions import did_you_mean, listed
from plait.cluster.topology import Cluster
from plait.cluster.units import parse_bandwidth, parse_bytes, parse_seconds
from plait.errors import PlaitError

_EXAMPLE = '"uplink=100 Gbit/s"'


@dataclass(frozen=True)
class Change:
    """One thing about a cluster that is different."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def parse_changes(text: str) -> tuple[Change, ...]:
    """Raises PlaitError where `text` is no list of changes.

    >>> [str(change) for change in parse_changes("uplink = 100 Gbit/s, hosts=16")]
    ['uplink=100 Gbit/s', 'hosts=16']
    """
    changes = tuple(_parsed(part) for part in text.split(","))
    keys = [change.key for change in changes]
    for key in keys:
        if keys.count(key) > 1:
            raise PlaitError(f'"{text}" changes {key} twice; keep one of them, or ask for the other separately.')
    return changes


def changed(cluster: Cluster, changes: Sequence[Change]) -> Cluster:
    """The cluster with all of them made. Raises PlaitError where one does not apply to it."""
    # More hosts are copies of those there are, so the order in which changes are made does not matter.
    for change in changes:
        cluster = _CHANGES[change.key](cluster, change)
    words = ", ".join(map(str, changes))
    return replace(cluster, name=f"{cluster.name} with {words}") if changes else cluster


def _parsed(text: str) -> Change:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key or not value:
        raise PlaitError(f'"{text.strip()}" is not a change; write KEY=VALUE, as in {_EXAMPLE}. Keys: {listed(KEYS)}.')
    if key not in _CHANGES:
        raise PlaitError(
            f'"{key}" is nothing that can be changed about a cluster. {did_you_mean(key, KEYS)}Keys: {listed(KEYS)}.'
        )
    return Change(key, value)


def _bandwidth(tier: str) -> Callable[[Cluster, Change], Cluster]:
    def make(cluster: Cluster, change: Change) -> Cluster:
        bandwidth = parse_bandwidth(change.value, name=change.key)
        return _links(cluster, change, tier, lambda link: replace(link, bandwidth=bandwidth))

    return make


def _latency(tier: str) -> Callable[[Cluster, Change], Cluster]:
    def make(cluster: Cluster, change: Change) -> Cluster:
        # A bare "0" is text here and a number in a file.
        latency = parse_seconds(0 if change.value == "0" else change.value, name=change.key)
        return _links(cluster, change, tier, lambda link: replace(link, latency=latency))

    return make


def _links(cluster: Cluster, change: Change, tier: str, make: Callable[[Link], Link]) -> Cluster:
    tiers = [_tier(link, cluster) for link in cluster.links]
    if tier not in tiers:
        there = [name for name in _TIERS if name in tiers]
        raise PlaitError(
            f"{change} does not apply: cluster {cluster.name} has no {_TIERS[tier]}. "
            + (f"It has {' and '.join(f'{_TIERS[name]} ({name})' for name in there)}." if there else "Leave it out.")
        )
    links = tuple(make(link) if name == tier else link for link, name in zip(cluster.links, tiers, strict=True))
    return replace(cluster, links=links)


def _tier(link: Link, cluster: Cluster) -> str:
    """The tier of a cluster file that a link is of; empty where it was written by itself."""
    switches, hosts = set(cluster.switches), {host.name for host in cluster.hosts}
    ends = {link.a, link.b}
    if ends <= switches:
        return "switches"
    if ends & switches:
        return "uplink" if ends & hosts else ""
    return "in_host" if ends & hosts else ""


def _kind(cluster: Cluster, change: Change) -> Cluster:
    known = {**PRESETS, **{device.kind.name: device.kind for device in cluster.devices}}
    kind = find_kind(change.value, known, where=change.key)
    return _devices(cluster, lambda device: replace(device, kind=kind, memory_bytes=kind.memory_bytes))


def _memory(cluster: Cluster, change: Change) -> Cluster:
    memory_bytes = parse_bytes(change.value, name=change.key)
    return _devices(cluster, lambda device: replace(device, memory_bytes=memory_bytes))


def _speed(cluster: Cluster, change: Change) -> Cluster:
    try:
        speed = float(change.value)
    except ValueError:
        raise PlaitError(f"{change} must be a number, 1 for the speed of the kind; write e.g. speed=0.9.") from None
    return _devices(cluster, lambda device: replace(device, speed=speed))


def _devices(cluster: Cluster, make: Callable[[Device], Device]) -> Cluster:
    return replace(cluster, devices=tuple(map(make, cluster.devices)))


@dataclass(frozen=True)
class _Template:
    """What all hosts have in common, in names without the host's own."""

    compute_slots: int | None
    devices: tuple[Device, ...]
    links: tuple[tuple[str, str, float, float], ...]  # "@" for the host's name, "^" for the switch above it


def _hosts(cluster: Cluster, change: Change) -> Cluster:
    if not re.fullmatch(r"[1-9]\d*", change.value, re.ASCII):
        raise PlaitError(f"{change} must be a whole number of at least 1; write e.g. hosts=16.")
    names = [host.name for host in cluster.hosts]
    above = {name: switch for name in names if (switch := _switch_above(name, cluster))}
    templates = {_template(host, above.get(host.name, ""), cluster) for host in cluster.hosts}
    astray = any(end[0] not in "@^" for template in templates for link in template.links for end in link[:2])
    if len(templates) > 1 or astray or len(above) < len(names):
        raise PlaitError(
            f"{change} does not apply to cluster {cluster.name}: copies can be made of hosts that are all alike and "
            "have an uplink to a switch, and these are not. Describe the larger cluster in a file of its own, with "
            "one [[hosts]] table, its count, in_host and uplink."
        )
    (template,) = templates
    count, switches = int(change.value), list(dict.fromkeys(above.values()))
    stem = re.sub(r"\d+$", "", names[0]) if len(names) > 1 else names[0]
    hosts, devices, links = [], [], []
    for number in range(count):
        name, switch = f"{stem}{number}" if count > 1 else stem, switches[number * len(switches) // count]
        hosts.append(Host(name, template.compute_slots))
        devices += [replace(d, name=d.name.replace("@", name), host=name) for d in template.devices]
        links += [Link(_own(a, name, switch), _own(b, name, switch), *rates) for a, b, *rates in template.links]
    trunk = [link for link in cluster.links if _tier(link, cluster) == "switches"]
    return Cluster(cluster.name, tuple(hosts), tuple(devices), cluster.switches, (*links, *trunk), cluster.aggregators)


def _own(name: str, host: str, switch: str) -> str:
    return switch if name == "^" else name.replace("@", host)


def _switch_above(host: str, cluster: Cluster) -> str:
    """The only switch that a host hangs from; empty where there is none or several."""
    ends = {link.b if link.a == host else link.a for link in cluster.links if host in (link.a, link.b)}
    found = ends & set(cluster.switches)
    return found.pop() if len(found) == 1 else ""


def _template(host: Host, switch: str, cluster: Cluster) -> _Template:
    def general(name: str) -> str:
        return "^" if name == switch else f"@{name.removeprefix(host.name)}" if own(name) else name

    def own(name: str) -> bool:
        return name == host.name or name.startswith(f"{host.name}/")

    devices = [d for d in cluster.devices if d.host == host.name]
    links = [link for link in cluster.links if own(link.a) or own(link.b)]
    return _Template(
        host.compute_slots,
        tuple(replace(device, name=general(device.name), host="@") for device in devices),
        tuple((general(link.a), general(link.b), link.bandwidth, link.latency) for link in links),
    )


_TIERS = {
    "uplink": "links from hosts to switches",
    "in_host": "links from devices to their hosts",
    "switches": "links between switches",
}
_CHANGES: Mapping[str, Callable[[Cluster, Change], Cluster]] = MappingProxyType(
    {
        "uplink": _bandwidth("uplink"),
        "uplink_latency": _latency("uplink"),
        "in_host": _bandwidth("in_host"),
        "in_host_latency": _latency("in_host"),
        "switches": _bandwidth("switches"),
        "switches_latency": _latency("switches"),
        "devices": _kind,
        "memory": _memory,
        "speed": _speed,
        "hosts": _hosts,
    }
)
KEYS = tuple(_CHANGES)
