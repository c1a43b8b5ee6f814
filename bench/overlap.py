"""What it gains to sum gradients beside computation: the six rows of S1, each at several shares of communication.

Emulated compute, real communication: every plan is played by real processes and packets between network namespaces,
with computations that take the time of the cost model (V100 presets; nothing is measured on this machine). GPT-2 runs
in hybrid parallel on six hosts (two stages of three replicas, 1F1B, two micro-batches), the image models in data
parallel on four devices of one host. The links are as fast as makes the gradient sums a given share of a device's
computation. One plan is played with each overlap (off, backward, full) and as plain PyTorch would run it
(DistributedDataParallel, with `torch.distributed.pipelining` where there are stages), one after the other in one run.

Hidden is the share of the hideable gradient sums that pass beside computation (docs/overlap.md), in the simulated
timeline with full overlap, which the emulated step confirms. The sum of GPT-2's tied embedding is not among them: its
gradient is final last of all and the next step's first operation reads it.

Claims: full overlap gains what S1 reports for each row at some share (1.14, 1.18, 1.23 and 1.31, 1.14, 1.03); at every
share it hides 90 % of the hideable gradient sums, is no more than 2 % slower than DistributedDataParallel, and faster
at the highest. Needs root and iproute2.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

import _clusters
from _cases import captured
from _harness import arguments, finish
from plait.cluster import Cluster
from plait.cost import Costs
from plait.emulate.commands import check_machine
from plait.emulate.testbed import NotTrusted, emulate, emulate_plain
from plait.graph import Graph
from plait.plan import OVERLAPS, Plan
from plait.program import COMPUTE, compile_program
from plait.search import Wishes, find_plans
from plait.simulate import Timeline
from plait.simulate.exposed import Cause, exposures
from plait.simulate.times import Times

SHARES, QUICK_SHARES = (0.1, 0.25, 0.5, 1.0), (0.5,)
HIDDEN, SLOWER = 0.9, 1.02
_TRIES, _STEPS = 3, 5
_REFERENCE = 10.0  # Gbit/s, to find the rate of a share from
_PLAIN = "pytorch"


@dataclass(frozen=True)
class Setting:
    model: str
    hosts: int
    devices: int  # of each
    batch_size: int
    wishes: Wishes
    reported: float  # S1's gain

    def cluster(self, rate: float) -> Cluster:
        """`rate` in Gbit/s between hosts, or between the devices of the only one."""
        name = f"{self.hosts}x{self.devices}-{rate:.3g}g"
        if self.hosts > 1:
            return _clusters.hosts(name, self.hosts, self.devices, "v100-32gb", in_host=_clusters.NVSWITCH, rate=rate)
        link = f'{{ bandwidth = "{rate / 8:.6g} GB/s", latency = "5 us" }}'
        return _clusters.hosts(name, 1, self.devices, "v100-32gb", in_host=link)


_HYBRID = Wishes(replicas=(3, 3), micro_batches=2, schedule="1f1b", recompute=False, sync="ring")
_DATA = Wishes(replicas=(4,), micro_batches=1, recompute=False, sync="ring")
SETTINGS = (
    Setting("gpt2-xl", 6, 1, 12, _HYBRID, 1.14),
    Setting("gpt2-large", 6, 1, 24, _HYBRID, 1.18),
    Setting("gpt2-medium", 6, 1, 48, _HYBRID, 1.23),
    Setting("alexnet", 1, 4, 512, _DATA, 1.31),
    Setting("vgg16", 1, 4, 256, _DATA, 1.14),
    Setting("resnet50", 1, 4, 256, _DATA, 1.03),
)
QUICK_SETTINGS = ("gpt2-medium", "vgg16")


@dataclass(frozen=True)
class Row:
    """Seconds of a step by overlap, and as plain PyTorch; of each the median, the least and the most."""

    model: str
    share: float
    rate: float
    seconds: dict[str, tuple[float, float, float]]
    simulated: dict[str, float]
    hidden: float
    trusted: bool

    @property
    def gain(self) -> float:
        return self.seconds["off"][0] / self.seconds["full"][0]

    @property
    def beside_plain(self) -> float:
        return self.seconds["full"][0] / self.seconds[_PLAIN][0]


class Bench:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.graph, self.costs = captured(setting.model)
        self.trusted = True

    def row(self, share: float) -> Row:
        rate = _REFERENCE * share_of_sums(self._plan(_REFERENCE), self.graph, self.costs) / share
        plan = self._plan(rate)
        seconds: dict[str, list[float]] = {name: [] for name in (*OVERLAPS, _PLAIN)}
        simulated: dict[str, float] = {}
        self.trusted = True
        hidden = 0.0
        for overlap in OVERLAPS:
            seconds[overlap], timeline = self._played(replace(plan, overlap=overlap))
            simulated[overlap], hidden = timeline.step_seconds, hidden_share(timeline)
        seconds[_PLAIN] = self._played_plain(plan)
        return Row(
            self.setting.model,
            share,
            rate,
            {name: (median(found), min(found), max(found)) for name, found in seconds.items()},
            simulated,
            hidden,
            self.trusted,
        )

    def _plan(self, rate: float) -> Plan:
        answer = find_plans(
            self.graph,
            self.costs,
            self.setting.cluster(rate),
            batch_size=self.setting.batch_size,
            wishes=self.setting.wishes,
            budget_seconds=1.0,
        )
        return answer.best.plan

    def _played(self, plan: Plan) -> tuple[list[float], Timeline]:
        for force in self._tries():
            try:
                with tempfile.TemporaryDirectory() as folder:
                    found = emulate(plan, self.graph, self.costs, Path(folder), num_steps=_STEPS, force=force)
            except NotTrusted:
                continue
            self.trusted = self.trusted and not found.findings.why_not_trusted()
            return list(found.steps), found.simulated
        raise AssertionError("a forced play is trusted")

    def _played_plain(self, plan: Plan) -> list[float]:
        for force in self._tries():
            try:
                with tempfile.TemporaryDirectory() as folder:
                    return list(
                        emulate_plain(plan, self.graph, self.costs, Path(folder), num_steps=_STEPS, force=force)
                    )
            except NotTrusted:
                continue
        raise AssertionError("a forced play is trusted")

    def _tries(self) -> list[bool]:
        return [attempt == _TRIES - 1 for attempt in range(_TRIES)]


def share_of_sums(plan: Plan, graph: Graph, costs: Costs) -> float:
    """Seconds of a stage's gradient sums over those that a device of it computes, of the stage where that is most."""
    program = compile_program(plan, graph)
    times = Times(program, plan, costs)
    summed: dict[int, float] = {}
    for bucket in program.buckets:
        if bucket.stage is not None:
            summed[bucket.stage] = summed.get(bucket.stage, 0.0) + times.reduce(bucket.name)[0]
    shares = []
    for stage, seconds in summed.items():
        rank = program.stages[stage].ranks[0]
        own = [ins for ins in program.ranks[rank] if ins.op in COMPUTE]
        shares.append(seconds / sum(times.compute(rank, ins.op, ins.stage, ins.rows) for ins in own))
    return max(shares)


def hidden_share(timeline: Timeline) -> float:
    """Of the gradient sums that could pass beside computation, how much does so, over all ranks."""
    found = exposures(timeline)
    hidden = sum(rank.hidden.get(Cause.GRADIENT, 0.0) for rank in found)
    hideable = sum(rank.hideable.get(Cause.GRADIENT, 0.0) for rank in found)
    return hidden / (hidden + hideable) if hidden + hideable else 1.0


def show(rows: Sequence[Row]) -> None:
    title = "Emulated step (emulated compute, real communication): seconds, and gain over no overlap"
    table = Table(title=title)
    for heading in ("model", "sums", "link", "off s", "backward", "full", "PyTorch", "hidden", "S1"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    reported = {setting.model: setting.reported for setting in SETTINGS}
    for row in rows:
        off = row.seconds["off"][0]
        table.add_row(
            row.model,
            f"{row.share:.0%}",
            f"{row.rate:.3g} Gbit/s",
            f"{off:.4g}{'' if row.trusted else ' ?'}",
            *(f"{off / row.seconds[name][0]:.3f}" for name in ("backward", "full", _PLAIN)),
            f"{row.hidden:.0%}",
            f"{reported[row.model]:.2f}",
        )
    Console(width=110).print(table)


def reached(rows: Sequence[Row]) -> dict[str, float | None]:
    """By model the least share at which S1's gain is reached."""
    found: dict[str, float | None] = {}
    for setting in SETTINGS:
        own = [row for row in rows if row.model == setting.model]
        enough = [row.share for row in own if row.gain >= setting.reported]
        if own:
            found[setting.model] = min(enough, default=None)
    return found


def main() -> None:
    options = arguments(__doc__)
    check_machine()
    chosen = [setting for setting in SETTINGS if not options.quick or setting.model in QUICK_SETTINGS]
    rows = []
    for setting in chosen:
        bench = Bench(setting)
        for share in QUICK_SHARES if options.quick else SHARES:
            rows.append(bench.row(share))
            print(f"{setting.model} at {share:.0%}: {rows[-1].gain:.3f}, hidden {rows[-1].hidden:.0%}", flush=True)
    show(rows)
    at = reached(rows)
    highest = [row for row in rows if row.share == max(row.share for row in rows)]
    figures: dict[str, object] = {f"{model.replace('-', '_')}_share": share for model, share in at.items()}
    figures |= {f"{row.model.replace('-', '_')}_most": round(row.gain, 3) for row in highest}
    figures |= {
        "least_hidden": round(min(row.hidden for row in rows), 3),
        "worst_beside_pytorch": round(max(row.beside_plain for row in rows), 3),
        "not_trusted": sum(not row.trusted for row in rows),
    }
    holds = (
        all(share is not None for share in at.values())
        and all(row.hidden >= HIDDEN for row in rows)
        and all(row.beside_plain <= SLOWER for row in rows)
        and all(row.beside_plain < 1 for row in highest)
    )
    finish("overlap", figures, rows=[asdict(row) for row in rows], holds=holds, check=options.check)


if __name__ == "__main__":
    main()
