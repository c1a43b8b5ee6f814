"""From the tables of a cluster file to the cluster: tiers are spelt out into single devices and links."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from plait.cluster.kinds import find_kind, known_kinds
from plait.cluster.parts import Aggregator, Device, DeviceKind, Host, Link
from plait.cluster.suggestions import did_you_mean, listed
from plait.cluster.tables import ClusterTables, DeviceTable, HostTable, InHostTable, SwitchTable, UplinkTable
from plait.cluster.topology import Cluster
from plait.errors import PlaitError

DEFAULT_SWITCH = "switch"


def build_cluster(tables: ClusterTables, *, default_name: str) -> Cluster:
    """The cluster a file describes; raises PlaitError with the TOML path of what is wrong."""
    build = _Build(known_kinds(tables.kinds), _switch_groups(tables))
    for index, host in enumerate(tables.hosts):
        build.add_hosts(host, where=f"hosts[{index}]")
    for index, device in enumerate(tables.devices):
        build.add_device(device, where=f"devices[{index}]")
    for index, switch in enumerate(tables.switches):
        build.add_switch_uplinks(switch, where=f"switches[{index}]")
    for link in tables.links:
        build.links.append(Link(link.between[0], link.between[1], link.bandwidth, link.latency))
    return Cluster(
        name=tables.name or default_name,
        hosts=tuple(build.hosts),
        devices=tuple(build.devices),
        switches=tuple(name for group in build.switch_groups.values() for name in group),
        links=tuple(build.links),
        aggregators=tuple(_aggregators(tables, build.switch_groups)),
    )


def numbered(name: str, count: int) -> list[str]:
    """
    >>> numbered("node", 1), numbered("node", 2)
    (['node'], ['node0', 'node1'])
    """
    return [name] if count == 1 else [f"{name}{number}" for number in range(count)]


def _switch_groups(tables: ClusterTables) -> dict[str, list[str]]:
    """Switch names by the name of their table. Without [[switches]], all uplinks meet in one switch."""
    groups: dict[str, list[str]] = {}
    for table in tables.switches:
        if table.name in groups:
            raise PlaitError(
                f'two [[switches]] are named "{table.name}"; every switch needs a name of its own: rename '
                "one, or write one table with a count"
            )
        groups[table.name] = numbered(table.name, table.count)
    if not groups and any(host.uplink for host in tables.hosts):
        groups[DEFAULT_SWITCH] = [DEFAULT_SWITCH]
    return groups


def _aggregators(tables: ClusterTables, groups: dict[str, list[str]]) -> Iterator[Aggregator]:
    for table in tables.switches:
        found = table.aggregate
        if found is not None:
            for switch in groups[table.name]:
                yield Aggregator(switch, found.slots, found.payload, found.efficiency)


@dataclass
class _Build:
    kinds: dict[str, DeviceKind]
    switch_groups: dict[str, list[str]]
    hosts: list[Host] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    # In-host tier by host name, for devices that [[devices]] adds to a host of [[hosts]].
    in_host: dict[str, InHostTable | None] = field(default_factory=dict)
    declared_hosts: list[str] = field(default_factory=list)

    def add_hosts(self, table: HostTable, *, where: str) -> None:
        names = numbered(table.name, table.count)
        self.declared_hosts += names
        for position, name in enumerate(names):
            self.hosts.append(Host(name, table.compute_slots))
            self.in_host[name] = table.in_host
            self._add_devices_of(name, table, where=where)
            if table.uplink is not None:
                switch = self._dealt(table.uplink, position, len(names), where=f"{where}.uplink")
                self.links.append(Link(name, switch, table.uplink.bandwidth, table.uplink.latency))

    def add_device(self, table: DeviceTable, *, where: str) -> None:
        host = table.host or (table.name.split("/")[0] if "/" in table.name else f"{table.name}-host")
        if table.host is not None or "/" in table.name:
            self._check_host(host, where=where)
        if host not in self.in_host:
            self.hosts.append(Host(host))
            self.in_host[host] = None
        kind = find_kind(table.kind, self.kinds, where=f"{where}.kind")
        self._append(Device(table.name, host, kind, table.memory or kind.memory_bytes, table.speed))

    def add_switch_uplinks(self, table: SwitchTable, *, where: str) -> None:
        if table.uplink is None:
            return
        names = self.switch_groups[table.name]
        for position, name in enumerate(names):
            above = self._dealt(table.uplink, position, len(names), where=f"{where}.uplink", below=table.name)
            self.links.append(Link(name, above, table.uplink.bandwidth, table.uplink.latency))

    def _add_devices_of(self, host: str, table: HostTable, *, where: str) -> None:
        numbers = {"gpu": 0, "cpu": 0}
        for index, devices in enumerate(table.devices):
            kind = find_kind(devices.kind, self.kinds, where=f"{where}.devices[{index}].kind")
            prefix = "gpu" if kind.backend == "cuda" else "cpu"
            for _ in range(devices.count):
                name = f"{host}/{prefix}{numbers[prefix]}"
                numbers[prefix] += 1
                self._append(Device(name, host, kind, devices.memory or kind.memory_bytes, devices.speed))

    def _append(self, device: Device) -> None:
        self.devices.append(device)
        tier = self.in_host[device.host]
        if tier is not None:
            self.links.append(Link(device.name, device.host, tier.bandwidth, tier.latency))

    def _check_host(self, host: str, *, where: str) -> None:
        """A file with [[hosts]] lists them all; one without names hosts by using them."""
        if self.declared_hosts and host not in self.declared_hosts:
            raise PlaitError(
                f'{where} sits in host "{host}", which is not among [[hosts]]. '
                f"{did_you_mean(host, self.declared_hosts)}Add it there, or use one of "
                f"{listed(self.declared_hosts)}"
            )

    def _dealt(self, uplink: UplinkTable, position: int, count: int, *, where: str, below: str | None = None) -> str:
        """The switch above number `position` of `count` hosts or switches.

        Several switches written as one table with a count get equal blocks: of 8 hosts under `rack` x 2, the
        first four hang on rack0.
        """
        group = self._switches_named(uplink.to, where=where, below=below)
        return group[position * len(group) // count]

    def _switches_named(self, to: str | None, *, where: str, below: str | None) -> Sequence[str]:
        others = {name: group for name, group in self.switch_groups.items() if name != below}
        if to is None and len(others) == 1:
            return next(iter(others.values()))
        if to is None:
            raise PlaitError(
                f"{where} does not say which switch it leads to, and there is not exactly one to choose "
                f'({listed(others) or "none"}); add e.g. to = "{next(iter(others), "spine")}"'
            )
        if to in self.switch_groups:
            return self.switch_groups[to]
        singles = [name for group in self.switch_groups.values() for name in group]
        if to in singles:
            return [to]
        known = [*self.switch_groups, *singles]
        raise PlaitError(
            f'{where}.to = "{to}" is not a switch of this file. {did_you_mean(to, known)}Declare it '
            f'with [[switches]] name = "{to}", or use one of {listed(self.switch_groups)}'
        )
