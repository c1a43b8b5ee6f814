"""Five ways to sum gradients, each over real packets on a test bed, against one another and the cost table.

Hosts around a switch that sums packets (`plait.switch`, in the switch's namespace), joined by shaped wires with
9000-byte frames. A tensor of float32 is summed by each way over torch.distributed (gloo) or the switch, all ways one
after the other in each round; a figure is the median of the rounds, from when a rank begins to when the last has the
sum. `ring` is gloo's own all-reduce; `hierarchical, cut` is the hierarchical sum with its phases overlapping chunk
after chunk, as PASSING's do, which plans do not use.

`processors` is how busy this machine was, with whatever else ran on it. Sixteen ranks at 200 Mbit/s are more than two
cores can carry; the same sums at half the rate show what the links limit.

Claims: at every setting PASSING is 1.45 times as fast as gloo's ring and as a hierarchical sum at 4 hosts and 1.65
times at 8; it reaches 90 % of its bound (what a host sends, once over its uplink); every way that plans use is
measured within 10 % of the cost table. Needs root, iproute2 and the C library of the switch.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from _bed import on_bed
from _clusters import hosts
from _harness import arguments, finish
from plait.cluster import Aggregator, Cluster
from plait.cost import sync_seconds
from plait.emulate.commands import check_machine
from plait.sync import Synchronizer, strategy_of
from plait.sync.aggregated import Aggregated
from plait.sync.chunks import CHUNK_BYTES
from plait.sync.collectives import TorchCollectives
from plait.sync.hierarchical import Hierarchical
from plait.sync.hosts import by_host, is_flat
from plait.sync.places import SwitchPlace
from plait.sync.strategies import NAMES


@dataclass(frozen=True)
class Setting:
    """`uplink` is in Gbit/s."""

    hosts: int
    devices: int  # of each
    uplink: float
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.hosts}x{self.devices}@{self.uplink * 1000:.0f}"

    @property
    def bound(self) -> float:
        """Seconds in which a host sends what is summed over its uplink once."""
        return SIZE / (self.uplink * 1e9 / 8)


IN_HOST = 4  # times the uplink's rate
SIZE, QUICK_ROUNDS = 16 * 2**20, 1
SETTINGS = (Setting(4, 1, 0.2, 3), Setting(4, 2, 0.2, 3), Setting(8, 2, 0.2, 2), Setting(8, 2, 0.1, 2))
ROUND_TRIP = 1e-4  # of an idle bed's wire, in seconds
_SLOW = "parameter-server"  # measured once
_CUT = "hierarchical, cut"
FASTER, OF_BOUND, OFF = {4: 1.45, 8: 1.65}, 0.9, 0.1


@dataclass(frozen=True)
class Row:
    """`busy` is the share of this machine's processors that did not idle, for us or for others."""

    setting: Setting
    way: str
    seconds: float
    busy: float
    all_seconds: tuple[float, ...]
    predicted: float | None

    @property
    def off(self) -> float:
        return 0.0 if self.predicted is None else self.seconds / self.predicted - 1


def bed_cluster(setting: Setting) -> Cluster:
    in_host = f'{{ bandwidth = "{IN_HOST * setting.uplink:g} Gbit/s", latency = "{ROUND_TRIP / 2} s" }}'
    found = hosts(setting.name, setting.hosts, setting.devices, "v100", in_host=in_host, rate=setting.uplink)
    payload = 8896
    # Headers of a datagram against those that the bed's rates leave out, of TCP.
    efficiency = payload / 9014 / ((9000 - 52) / 9014)
    return Cluster(
        found.name,
        found.hosts,
        found.devices,
        found.switches,
        found.links,
        (Aggregator(found.switches[0], 64, payload, efficiency),),
    )


def measured(setting: Setting, rounds: int) -> list[Row]:
    cluster = bed_cluster(setting)
    devices = range(len(cluster.devices))
    groups = [tuple(group) for group in by_host(devices, lambda device: cluster.devices[device].host)]

    def work(rank: int, place: SwitchPlace | None) -> dict[str, list[tuple[float, float]]]:
        ways = {name: strategy_of(name, groups, place) for name in NAMES}
        if not is_flat(groups):
            ways[_CUT] = Hierarchical(groups, CHUNK_BYTES, "cut ")
        wanted = [group for way in ways.values() for group in way.groups()]
        collectives = TorchCollectives(wanted, device=torch.device("cpu"), timeout_seconds=60.0)
        summing = {name: Synchronizer(way, collectives) for name, way in ways.items()}
        tensor = torch.zeros(SIZE // 4)
        for synchronizer in summing.values():  # connections
            synchronizer.all_reduce(torch.zeros(1 << 16)).wait()
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in summing}
        for number in range(rounds):
            for name, synchronizer in summing.items():
                if name == _SLOW and number:
                    continue
                tensor.fill_(rank + 0.5)
                dist.barrier()
                start, (idle, total) = time.perf_counter(), processor_seconds()
                synchronizer.all_reduce(tensor).wait()
                seconds, (idle_now, total_now) = time.perf_counter() - start, processor_seconds()
                found[name].append((seconds, 1 - (idle_now - idle) / max(total_now - total, 1e-9)))
                assert tensor[0] == tensor[-1] == sum(other + 0.5 for other in devices), name
        for name, synchronizer in summing.items():
            way = ways[name]
            assert not isinstance(way, Aggregated) or way.turns.attempt == 0, f"{name} went over the ring"
            synchronizer.close()
        dist.barrier()
        return found

    answers = on_bed(cluster, devices, work)
    rows = []
    for name in answers[0]:
        times = [
            max(seconds for seconds, _ in turn) for turn in zip(*(answer[name] for answer in answers), strict=True)
        ]
        predicted = None if name == _CUT else sync_seconds(name, SIZE, devices, cluster)[0]
        busy = median(busy for _, busy in answers[0][name])
        rows.append(Row(setting, name, median(times), busy, tuple(times), predicted))
    return rows


def processor_seconds() -> tuple[float, float]:
    """Of all processors since the machine started: idle, and in all."""
    line = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, idle, waiting, *rest = map(float, line.split()[1:9])
    return idle + waiting, user + nice + system + idle + waiting + sum(rest)


def show(rows: Sequence[Row]) -> None:
    table = Table(title=f"A sum of {SIZE >> 20} MiB; hosts x devices @ uplink in Mbit/s, links in hosts {IN_HOST}x")
    for heading in ("setting", "way", "seconds", "predicted", "off", "over ring", "processors"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    ring = {row.setting: row.seconds for row in rows if row.way == "ring"}
    for row in rows:
        table.add_row(
            row.setting.name,
            row.way,
            f"{row.seconds:.3f}",
            "" if row.predicted is None else f"{row.predicted:.3f}",
            "" if row.predicted is None else f"{row.off:+.1%}",
            f"{ring[row.setting] / row.seconds:.2f}x",
            f"{row.busy:.0%}",
        )
    Console(width=100).print(table)


def main() -> None:
    options = arguments(__doc__)
    check_machine()
    rows: list[Row] = []
    for setting in SETTINGS[:2] if options.quick else SETTINGS:
        own = measured(setting, QUICK_ROUNDS if options.quick else setting.rounds)
        print(f"{setting.name}:", *(f"{row.way} {row.seconds:.3f}" for row in own), flush=True)
        rows += own
    show(rows)
    figures: dict[str, object] = {}
    holds = True
    for setting in dict.fromkeys(row.setting for row in rows):
        seconds = {row.way: row.seconds for row in rows if row.setting == setting}
        gain = min(seconds["ring"], seconds["hierarchical"]) / seconds["passing"]
        of_bound = setting.bound / seconds["passing"]
        figures |= {f"gain_{setting.name}": round(gain, 3), f"of_bound_{setting.name}": round(of_bound, 3)}
        if _CUT in seconds:
            figures[f"gain_over_cut_{setting.name}"] = round(seconds[_CUT] / seconds["passing"], 3)
        worst = max((row for row in rows if row.setting == setting), key=lambda row: abs(row.off))
        figures[f"worst_prediction_{setting.name}"] = f"{worst.way}:{worst.off:+.3f}"
        holds = holds and gain >= FASTER[setting.hosts] and of_bound >= OF_BOUND and abs(worst.off) <= OFF
    finish("sync", figures, rows=[asdict(row) for row in rows], holds=holds, check=options.check)


if __name__ == "__main__":
    main()
