"""What every cluster must satisfy, however it was made: each check names what breaks it and the fix."""

from collections.abc import Mapping, Sequence

from plait.cluster.parts import Aggregator, Device, Host, Link
from plait.cluster.suggestions import did_you_mean
from plait.errors import PlaitError


def check_cluster(
    hosts: Sequence[Host], devices: Sequence[Device], switches: Sequence[str], links: Sequence[Link]
) -> None:
    """Raise PlaitError unless names are unique, references resolve and all devices reach each other."""
    if not devices:
        raise PlaitError(
            "the cluster has no devices, and a plan needs at least one to place work on; give a host "
            'devices = [{ kind = "v100", count = 4 }] or add [[devices]]'
        )
    roles = _roles_by_name(hosts, devices, switches)
    _check_devices(devices, roles)
    _check_links(links, roles)
    _check_reachable(devices, links, roles)


def check_aggregators(aggregators: Sequence[Aggregator], switches: Sequence[str]) -> None:
    """Raise PlaitError unless each of them is another switch of the cluster."""
    for number, aggregator in enumerate(aggregators):
        if aggregator.switch not in switches:
            raise PlaitError(
                f'"{aggregator.switch}" is said to sum packets, and is not a switch of this cluster. '
                f"{did_you_mean(aggregator.switch, switches)}Add that switch, or name one that exists"
            )
        if aggregator.switch in (other.switch for other in aggregators[:number]):
            raise PlaitError(f'"{aggregator.switch}" is said twice to sum packets: leave one of the two out')


def _roles_by_name(hosts: Sequence[Host], devices: Sequence[Device], switches: Sequence[str]) -> Mapping[str, str]:
    roles: dict[str, str] = {}
    named = [
        *(("host", host.name) for host in hosts),
        *(("switch", switch) for switch in switches),
        *(("device", device.name) for device in devices),
    ]
    for role, name in named:
        if not name or any(character.isspace() for character in name):
            raise PlaitError(
                f'the {role} name "{name}" is empty or has a space in it; names go into process and network '
                'names, so write one word, e.g. "node0"'
            )
        if name in roles:
            raise PlaitError(
                f'the name "{name}" is given to a {roles[name]} and to another {role}; every host, switch '
                "and device needs a name of its own: rename one of them"
            )
        roles[name] = role
    return roles


def _check_devices(devices: Sequence[Device], roles: Mapping[str, str]) -> None:
    kinds = {device.kind.name: device.kind for device in devices}
    for device in devices:
        if roles.get(device.host) != "host":
            hosts = [name for name, role in roles.items() if role == "host"]
            raise PlaitError(
                f'device "{device.name}" is said to sit in "{device.host}", which is not a host of this '
                f"cluster. {did_you_mean(device.host, hosts)}Add that host, or name one that exists"
            )
        if device.kind != kinds[device.kind.name]:
            raise PlaitError(
                f'two different device kinds are both named "{device.kind.name}" (device "{device.name}" has '
                "one of them); a kind is told by its name: rename one"
            )


def _check_links(links: Sequence[Link], roles: Mapping[str, str]) -> None:
    joined: set[frozenset[str]] = set()
    for link in links:
        for end in (link.a, link.b):
            if end not in roles:
                raise PlaitError(
                    f'the link between "{link.a}" and "{link.b}" ends at "{end}", which is no device, host '
                    f"or switch of this cluster. {did_you_mean(end, roles)}Name one that exists, or add it"
                )
        ends = frozenset((link.a, link.b))
        if ends in joined:
            raise PlaitError(
                f'"{link.a}" and "{link.b}" are linked twice; parallel cables are one link here: keep one, '
                "with their total bandwidth"
            )
        joined.add(ends)


def _check_reachable(devices: Sequence[Device], links: Sequence[Link], roles: Mapping[str, str]) -> None:
    neighbours: dict[str, list[str]] = {name: [] for name in roles}
    for link in links:
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    first, reached = devices[0], _reached_from(devices[0].name, neighbours)
    for device in devices:
        if device.name not in reached:
            here = _top_of(first, reached, roles)
            there = _top_of(device, _reached_from(device.name, neighbours), roles)
            tier = _missing_tier(device if there == device.name else first, here, there, devices, neighbours)
            raise PlaitError(
                f'devices "{first.name}" and "{device.name}" cannot reach each other, and a plan may need '
                f'any two to talk: no link joins {roles[here]} "{here}" to {roles[there]} "{there}"; {tier}'
                f'add [[links]] with between = ["{here}", "{there}"], a bandwidth and a latency'
            )


def _reached_from(start: str, neighbours: Mapping[str, Sequence[str]]) -> dict[str, None]:
    """Names in the order found: a dict, because the order of a set changes from run to run."""
    reached = {start: None}
    stack = [start]
    while stack:
        for name in neighbours[stack.pop()]:
            if name not in reached:
                reached[name] = None
                stack.append(name)
    return reached


def _top_of(device: Device, reached: Mapping[str, None], roles: Mapping[str, str]) -> str:
    """The vertex of a disconnected part at which a link to the rest would naturally be added."""
    switches = [name for name in reached if roles[name] == "switch"]
    if switches:
        return switches[-1]
    return device.host if device.host in reached else device.name


def _missing_tier(
    device: Device,
    here: str,
    there: str,
    devices: Sequence[Device],
    neighbours: Mapping[str, Sequence[str]],
) -> str:
    """The tier whose absence parts `here` from `there`, where the cluster is one of tiers."""
    if device.name not in (here, there):
        return "give each an uplink = { to = …, bandwidth = …, latency = … } to a common switch, or "
    shares_host = sum(other.host == device.host for other in devices) > 1
    if shares_host or neighbours[device.host]:
        return f'give host "{device.host}" an in_host = {{ bandwidth = …, latency = … }}, or '
    return ""
