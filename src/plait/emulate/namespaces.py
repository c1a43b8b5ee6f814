"""The noun `Bed`: a topology as network namespaces joined by shaped wires, there for as long as a `with` block.

Nothing of it lies outside its own namespaces, so beds side by side may use the same addresses. A namespace more, the
office, is joined to every device by unshaped wires: there the ranks' rendezvous and control server listen, so that what
they say to those does not pass the wires that are measured.
"""

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from plait.emulate.commands import batch, check_machine, inside
from plait.emulate.leftovers import FOLDER, PREFIX, Note, Process, clear_leftovers, remove, started, this_process
from plait.emulate.shaping import Shape, window
from plait.emulate.topology import Hop, Topology, address

DATA_INTERFACE, OFFICE_INTERFACE = "data", "office"
_OFFICE_NETWORK = 78
_SETTINGS = {
    "ipv4/ip_forward": "1",
    "ipv6/conf/all/disable_ipv6": "1",
    # Loss-based and without pacing of its own: nothing is lost here, so it sends as fast as the wire takes it.
    "ipv4/tcp_congestion_control": "reno",
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_no_metrics_save": "1",
}


class Bed:
    """`bandwidths` are those of the topology's wires, in bytes per second of payload and direction."""

    def __init__(
        self, topology: Topology, bandwidths: Sequence[float], *, mtu: int = 9000, folder: Path = FOLDER
    ) -> None:
        check_machine()
        self.topology = topology
        self.name = f"{PREFIX}{secrets.token_hex(4)}"
        self.office = f"{self.name}-office"
        self.host = address(0, network=_OFFICE_NETWORK)
        self._shapes = [Shape(bandwidth, mtu) for bandwidth in bandwidths]
        self._mtu = mtu
        self._window = window(bandwidths)
        self._folder = folder
        self._note = Note(this_process(), (*(self.namespace(i) for i in range(len(topology.vertices))), self.office))

    def namespace(self, position: int) -> str:
        """Of the vertex at this position; the devices come first."""
        return f"{self.name}-{position}"

    def command(self, position: int, words: Sequence[str]) -> list[str]:
        """A command line that runs a program in the namespace of a device."""
        return ["ip", "netns", "exec", self.namespace(position), *words]

    def own(self, pids: Sequence[int]) -> None:
        """These processes end with the bed, whatever becomes of its owner."""
        found = (Process(pid, when) for pid in pids if (when := started(pid)) is not None)
        self._note = Note(self._note.owner, self._note.namespaces, (*self._note.processes, *found))
        self._note.write(self._path)

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.name}.json"

    def __enter__(self) -> "Bed":
        clear_leftovers(self._folder)
        self._note.write(self._path)  # before there is anything to leave behind
        with ExitStack() as undo:
            undo.callback(self.remove)
            self._make()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        remove(self._note.namespaces, self._note.processes)
        self._path.unlink(missing_ok=True)

    def _make(self) -> None:
        batch("ip", [f"netns add {name}" for name in self._note.namespaces])
        for name in self._note.namespaces:
            with inside(name):
                for setting, value in {**_SETTINGS, **self._buffers()}.items():
                    Path("/proc/sys/net", setting).write_text(value)
        batch("ip", [*map(self._wire, range(len(self._shapes))), *self._office_links()])
        self._furnish_office()
        for position in range(len(self.topology.vertices)):
            self._furnish(position)

    def _buffers(self) -> dict[str, str]:
        """Half of what a socket receives into is for the kernel's own use."""
        return {
            "ipv4/tcp_wmem": f"4096 65536 {self._window}",
            "ipv4/tcp_rmem": f"4096 {min(131072, 2 * self._window)} {2 * self._window}",
        }

    def _wire(self, number: int) -> str:
        wire = self.topology.wires[number]
        first, second = (f"{wire.interface} mtu {self._mtu} netns {self.namespace(end)}" for end in (wire.a, wire.b))
        return f"link add {first} type veth peer name {second}"

    def _office_links(self) -> list[str]:
        lines = [f"link add desks netns {self.office} type bridge"]
        for device in range(self.topology.num_devices):
            end = f"name {OFFICE_INTERFACE} netns {self.namespace(device)}"
            lines.append(f"link add desk{device} netns {self.office} type veth peer {end}")
        return lines

    def _furnish_office(self) -> None:
        desks = [f"desk{device}" for device in range(self.topology.num_devices)]
        lines = ["link set lo up", f"addr add {self.host}/16 dev desks", "link set desks up"]
        lines += [f"link set {desk} master desks up" for desk in desks]
        batch("ip", lines, namespace=self.office)

    def _furnish(self, position: int) -> None:
        vertex = self.topology.vertices[position]
        own = [(n, w) for n, w in enumerate(self.topology.wires) if position in (w.a, w.b)]
        lines = ["link set lo up", f"link add {DATA_INTERFACE} type bridge", f"link set {DATA_INTERFACE} up"]
        lines.append(f"addr add {vertex.address}/32 dev {DATA_INTERFACE}")
        lines += [f"link set {wire.interface} up" for _, wire in own]
        if position < self.topology.num_devices:
            lines.append(f"addr add {address(position + 1, network=_OFFICE_NETWORK)}/16 dev {OFFICE_INTERFACE}")
            lines.append(f"link set {OFFICE_INTERFACE} up")
        lines += _routes([hop for hop in self.topology.hops if hop.at == position], vertex.address)
        under_way = 2 * self._window * 2 * self.topology.num_devices**2
        batch("ip", lines, namespace=self.namespace(position))
        shapes = [self._shapes[n].qdisc(wire.interface, under_way) for n, wire in own]
        batch("tc", shapes, namespace=self.namespace(position))


def _routes(hops: Sequence[Hop], own_address: str) -> list[str]:
    """What holds for all sources goes into the main table; each exception into a table of its own."""
    lines = []
    for number, hop in enumerate(hops):
        way = f"via {hop.next_hop} dev {hop.interface} onlink src {own_address}"
        if hop.source is None:
            lines.append(f"route add {hop.target}/32 {way}")
        else:
            table = 1000 + number
            lines.append(f"route add {hop.target}/32 {way} table {table}")
            lines.append(f"rule add from {hop.source} to {hop.target} table {table} priority {table}")
    return lines
