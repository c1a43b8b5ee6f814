"""The aggregating switch alone: how much of its links a sum fills, and what loss costs.

Claim: with 9000-byte frames, 4 hosts on links of 500 Mbit/s and of 1 Gbit/s and 8 on links of 200 Mbit/s sum 16 MB in
no more than 1.11 of the bound, and so do 4 on 200 Mbit/s with up to 1 % of packets lost. The bound is the time a link
needs for one host's packets, headers and all. With 1500-byte frames and with 5 % lost the share is shown, not claimed:
there the machine's cores, or the losses, are the limit. Each host is a process in a network namespace,
joined to the switch's by a shaped link: emulated hosts, real packets, real sums. The figure is the median of the sums
after the first.
"""

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch
from rich.console import Console
from rich.table import Table

from _harness import arguments, finish
from plait.cluster import PRESETS, Cluster, Device, Host, Link
from plait.emulate.commands import enter, inside, missing
from plait.emulate.namespaces import Bed
from plait.emulate.shaping import ETHERNET, payload_share
from plait.emulate.topology import topology
from plait.switch.daemon import Switch
from plait.switch.datagrams import HEADER, IP_AND_UDP
from plait.switch.faults import Faults
from plait.switch.worker import SwitchWorker

LIMIT = 1.11
KEY, PORT = "bench", 4790
CASES = {  # hosts, Gbit/s, MTU, loss
    "4_hosts_500_mbit": (4, 0.5, 9000, 0.0),
    "8_hosts_200_mbit": (8, 0.2, 9000, 0.0),
    "loss_0.1_percent": (4, 0.2, 9000, 0.001),
    "loss_1_percent": (4, 0.2, 9000, 0.01),
    "loss_5_percent": (4, 0.2, 9000, 0.05),
    "4_hosts_1_gbit": (4, 1.0, 9000, 0.0),
    "small_frames": (4, 0.2, 1500, 0.0),
}
NOT_CLAIMED = ("loss_5_percent", "small_frames")
_CONTEXT = multiprocessing.get_context("fork")  # importing PyTorch anew would take longer than the sums


@dataclass(frozen=True)
class Row:
    """`share` is the bound by the seconds."""

    hosts: int
    gbit: float
    mtu: int
    loss: float
    megabytes: float
    seconds: float
    share: float
    retransmitted: float


def star(hosts: int, bandwidth: float) -> Cluster:
    """The switch is the last device: whatever has an address of its own is one."""
    kind = PRESETS["v100"]
    names = [f"d{number}" for number in range(hosts + 1)]
    devices = tuple(Device(name, f"h{name}", kind, kind.memory_bytes) for name in names)
    links = tuple(Link(name, names[-1], bandwidth, 1e-6) for name in names[:-1])
    return Cluster("star", tuple(Host(f"h{name}") for name in names), devices, (), links)


def contribute(
    namespace: str, address: str, worker: int, count: int, size: int, repeats: int, told: Connection
) -> None:
    torch.set_num_threads(1)
    enter(namespace)
    own, summed, barrier = torch.full((size,), float(worker + 1)), torch.empty(size), torch.ones(1)
    with SwitchWorker((address, PORT), job="bench", key=KEY, worker=worker, count=count) as one:
        times = []
        for _ in range(repeats):
            one.all_reduce(barrier)  # whoever is late must not count
            begin = time.perf_counter()
            one.all_reduce(own, out=summed)
            times.append(time.perf_counter() - begin)
        assert summed.eq(count * (count + 1) / 2).all()
        told.send((times, one.report.retransmitted / one.report.sent, one.elements))


def serve(namespace: str, address: str, faults: Faults, told: Connection) -> None:
    with inside(namespace), Switch(key=KEY, host=address, control_port=PORT, data_port=PORT, faults=faults):
        told.send("ready")
        told.recv()


@contextmanager
def started(process: BaseProcess) -> Iterator[None]:
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join(5.0)


def measure(hosts: int, gbit: float, mtu: int, loss: float, size: int, repeats: int) -> Row:
    rate = gbit * 1e9 / 8
    cluster = star(hosts, rate * payload_share(mtu))
    layout = topology(cluster, range(hosts + 1))
    pipes = [_CONTEXT.Pipe() for _ in range(hosts + 1)]
    with Bed(layout, [link.bandwidth for link in cluster.links], mtu=mtu) as bed:
        address = layout.vertices[hosts].address
        switch = _CONTEXT.Process(
            target=serve, args=(bed.namespace(hosts), address, Faults(loss=loss, seed=1), pipes[hosts][1]), daemon=True
        )
        with started(switch):
            assert pipes[hosts][0].poll(30.0), "the switch did not start"
            workers = [
                _CONTEXT.Process(
                    target=contribute,
                    args=(bed.namespace(n), address, n, hosts, size, repeats, pipes[n][1]),
                    daemon=True,
                )
                for n in range(hosts)
            ]
            for worker in workers:
                worker.start()
            found = [pipe.recv() for pipe, _ in pipes[:hosts] if pipe.poll(120.0)]
            for worker in workers:
                worker.join(5.0)
                worker.kill()
    assert len(found) == hosts, f"{hosts - len(found)} of {hosts} workers did not finish"
    times, again, elements = zip(*found, strict=True)
    seconds = statistics.median([max(turn) for turn in zip(*times, strict=True)][1:])
    packets = -(-size // elements[0])
    bound = (4 * size + packets * (HEADER + IP_AND_UDP + ETHERNET)) / rate
    return Row(hosts, gbit, mtu, loss, 4e-6 * size, seconds, bound / seconds, statistics.fmean(again))


def main() -> None:
    asked = arguments(__doc__ or "")
    if lack := missing():
        raise SystemExit(f"this bench {lack.removeprefix('an emulated cluster ')}")
    repeats = 4 if asked.quick else 8
    cases = dict(list(CASES.items())[: 4 if asked.quick else None])
    rows: dict[str, Row] = {}
    table = Table("hosts", "Gbit/s", "MTU", "loss", "MB", "ms", "of the bound", "sent again")
    for name, (hosts, gbit, mtu, loss) in cases.items():
        row = rows[name] = measure(hosts, gbit, mtu, loss, 4_000_000, repeats)
        table.add_row(
            str(hosts), f"{gbit:g}", str(mtu), f"{loss:.1%}", f"{row.megabytes:.0f}", f"{row.seconds * 1e3:.0f}",
            f"{row.share:.1%}", f"{row.retransmitted:.2%}",
        )  # fmt: skip
    Console().print(table)
    figures = {f"share_{name}": round(row.share, 3) for name, row in rows.items()}
    holds = all(row.share >= 1 / LIMIT for name, row in rows.items() if name not in NOT_CLAIMED)
    finish("switch", figures, rows=[asdict(row) for row in rows.values()], holds=holds, check=asked.check)


if __name__ == "__main__":
    main()
