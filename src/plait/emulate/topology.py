"""From a cluster to what the bed is made of: vertices, wires, addresses and routing tables. Pure.

Every device, host and switch on the way between two of the given devices becomes a vertex with one address, every link
between them a wire. A message takes the route that the simulator prices (`Cluster.route`), which depends on both its
ends: two messages for one device may leave a switch by different links. Such a fork is an exception to the vertex's
table, made by a rule for that one source.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plait.cluster import Cluster
from plait.errors import PlaitError

MOST_VERTICES = 250  # what one machine's kernel sets up within seconds


@dataclass(frozen=True)
class Vertex:
    """`number` is the cluster's; `address` its own on the data network."""

    name: str
    number: int
    address: str


@dataclass(frozen=True)
class Wire:
    """Link `index` of the cluster between the vertices at positions `a` and `b`; its ends are called `interface`."""

    index: int
    a: int
    b: int

    @property
    def interface(self) -> str:
        return f"wire{self.index}"


@dataclass(frozen=True)
class Hop:
    """At the vertex of position `at`: what is for `target` leaves by `interface` to the neighbour `next_hop`.

    With a `source` this holds for messages from there alone, and goes before the hop without.
    """

    at: int
    target: str
    next_hop: str
    interface: str
    source: str | None = None


@dataclass(frozen=True)
class Topology:
    """The devices come first among the vertices, in the order they were asked for."""

    num_devices: int
    vertices: tuple[Vertex, ...]
    wires: tuple[Wire, ...]
    hops: tuple[Hop, ...]


def topology(cluster: Cluster, devices: Sequence[int]) -> Topology:
    """The part of `cluster` that messages between `devices` pass; switches there that sum packets can be reached."""
    routes = {(a, b): cluster.route(a, b) for a in devices for b in devices if a != b}
    passed = {end for route in routes.values() for channel in route for end in _ends(cluster, channel)}
    # Switches that sum packets are talked to themselves.
    for switch in passed & {cluster.vertex(aggregator.switch) for aggregator in cluster.aggregators}:
        routes |= {(device, switch): cluster.route(device, switch) for device in devices}
        routes |= {(switch, device): cluster.route(switch, device) for device in devices}
    links = sorted({channel >> 1 for route in routes.values() for channel in route})
    ends = {end for link in links for end in _ends(cluster, 2 * link)}
    numbers = [*devices, *sorted(ends - set(devices))]
    if len(numbers) > MOST_VERTICES:
        raise PlaitError(
            f"the plan's devices on {cluster.name} are joined by {len(numbers)} devices, hosts and switches, and one "
            f"machine can hold {MOST_VERTICES}. Emulate a smaller plan of the same kind, or use `plait simulate`."
        )
    position = {number: index for index, number in enumerate(numbers)}
    vertices = tuple(Vertex(cluster.vertex_names[n], n, address(i)) for i, n in enumerate(numbers))
    wires = tuple(Wire(link, *(position[end] for end in _ends(cluster, 2 * link))) for link in links)
    return Topology(len(devices), vertices, wires, tuple(_hops(cluster, routes, position, vertices)))


def address(position: int, *, network: int = 77) -> str:
    """
    >>> address(0), address(300, network=78)
    ('10.77.0.1', '10.78.1.45')
    """
    return f"10.{network}.{(position + 1) >> 8}.{(position + 1) & 255}"


def _ends(cluster: Cluster, channel: int) -> tuple[int, int]:
    a, b = cluster.channel_ends(channel)
    return cluster.vertex(a), cluster.vertex(b)


def _hops(
    cluster: Cluster,
    routes: dict[tuple[int, int], tuple[int, ...]],
    position: dict[int, int],
    vertices: Sequence[Vertex],
) -> list[Hop]:
    general: dict[tuple[int, str], Hop] = {}
    exceptions: list[Hop] = []
    for (a, b), route in routes.items():
        for channel in route:
            at, after = (position[end] for end in _ends(cluster, channel))
            target = vertices[position[b]].address
            hop = Hop(at, target, vertices[after].address, f"wire{channel >> 1}")
            usual = general.setdefault((at, target), hop)
            if usual != hop:
                exceptions.append(Hop(at, target, hop.next_hop, hop.interface, vertices[position[a]].address))
    return [*general.values(), *exceptions]
