"""Data-parallel training by each way to sum gradients: seconds of a step, played on the test bed.

Emulated compute, real communication: the runtime's own program on real processes and packets between network
namespaces, sums by torch.distributed (gloo) or an aggregating switch in the switch's namespace; computations take the
time of the cost model (V100 presets; nothing is measured on this machine). Four hosts of two devices around a switch
that sums packets. The uplinks are as fast as makes a ring's gradient sums a given share of a device's computation.
Sums pass beside the backward pass, as plans have it (`overlap = "backward"`).

S4 reports training up to 65.25 % faster than with a parameter server. Claims: at some share of communication PASSING
trains at least 65.25 % faster than one parameter server does; where sums take as long as computation it is the
fastest way, and elsewhere, where most of them hide beside the backward pass whatever the way, none is more than 5 %
faster. Needs root, iproute2 and the C library of the switch.
"""

import json
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

import _clusters
from _cases import captured
from _harness import RESULTS, arguments, finish
from overlap import share_of_sums
from plait.cluster import Aggregator, Cluster
from plait.cost import SYNCHRONISATIONS
from plait.emulate.commands import check_machine
from plait.emulate.testbed import NotTrusted, emulate
from plait.plan import Plan
from plait.search import Wishes, find_plans

HOSTS, DEVICES = 4, 2
# Rows of a step, and the shares of communication.
MODELS = {"vgg16": (256, (0.25, 1.0)), "resnet50": (512, (1.0,)), "gpt2-medium": (64, (1.0,))}
QUICK_MODELS = {"vgg16": (256, (1.0,))}
REPORTED, NEAR = 1.6525, 1.05
_REFERENCE = 25.0  # Gbit/s, to find the rate of a share from
_STEPS, _TRIES = 3, 3


@dataclass(frozen=True)
class Row:
    """`seconds` of a step in the cluster's own time, as emulated."""

    model: str
    share: float
    rate: float
    sync: str
    seconds: float
    all_seconds: tuple[float, ...]
    simulated: float
    trusted: bool


def cluster_of(rate: float) -> Cluster:
    found = _clusters.hosts(f"{HOSTS}x{DEVICES}", HOSTS, DEVICES, "v100-32gb", in_host=_clusters.PCIE, rate=rate)
    return replace(found, aggregators=(Aggregator(found.switches[0], 64, 8896, 0.98),))


class Bench:
    def __init__(self, model: str) -> None:
        self.model = model
        self.graph, self.costs = captured(model)

    def rows(self, share: float) -> list[Row]:
        rate = _REFERENCE * share_of_sums(self._plan(_REFERENCE, "ring"), self.graph, self.costs) / share
        return [self._row(share, rate, sync) for sync in SYNCHRONISATIONS]

    def _plan(self, rate: float, sync: str) -> Plan:
        wishes = Wishes(replicas=(HOSTS * DEVICES,), micro_batches=1, recompute=False, sync=sync, overlap="backward")
        batch_size, _ = MODELS[self.model]
        found = find_plans(
            self.graph, self.costs, cluster_of(rate), batch_size=batch_size, wishes=wishes, budget_seconds=1.0
        )
        return found.best.plan

    def _row(self, share: float, rate: float, sync: str) -> Row:
        plan = self._plan(rate, sync)
        for attempt in range(_TRIES):
            try:
                with tempfile.TemporaryDirectory() as folder:
                    force = attempt == _TRIES - 1
                    found = emulate(plan, self.graph, self.costs, Path(folder), num_steps=_STEPS, force=force)
            except NotTrusted:
                continue
            trusted = not found.findings.why_not_trusted()
            simulated = found.simulated.step_seconds
            return Row(self.model, share, rate, sync, median(found.steps), found.steps, simulated, trusted)
        raise AssertionError("a forced play is trusted")


def gains(rows: Sequence[Row], over: str) -> dict[tuple[str, float], float]:
    """By model and share, how many times as fast PASSING is."""
    seconds = {(row.model, row.share, row.sync): row.seconds for row in rows}
    return {(m, s): seconds[m, s, over] / t for (m, s, sync), t in seconds.items() if sync == "passing"}


def show(rows: Sequence[Row]) -> None:
    table = Table(title="Emulated step (emulated compute, real communication), seconds")
    for heading in ("model", "sums", "uplink", "way", "step", "simulated", "over server"):
        table.add_column(heading, justify="left" if heading in ("model", "way") else "right")
    server = {(row.model, row.share): row.seconds for row in rows if row.sync == "parameter-server"}
    for row in rows:
        table.add_row(
            row.model,
            f"{row.share:.0%}",
            f"{row.rate:.3g} Gbit/s",
            row.sync,
            f"{row.seconds:.4g}{'' if row.trusted else ' ?'}",
            f"{row.simulated:.4g}",
            f"{server[row.model, row.share] / row.seconds:.2f}x",
        )
    Console(width=110).print(table)


def measured_before(models: Collection[str]) -> list[Row]:
    """Of these models, as the last run left it."""
    path = RESULTS / "sync_training.json"
    found = json.loads(path.read_text())["rows"] if path.exists() else []
    return [Row(**{**row, "all_seconds": tuple(row["all_seconds"])}) for row in found if row["model"] in models]


def main() -> None:
    only = "measure this model and keep what was measured of the others; may be given several times"
    options = arguments(
        __doc__, lambda parser: parser.add_argument("--only", action="append", choices=MODELS, help=only)
    )
    check_machine()
    wanted = {model: MODELS[model] for model in options.only or MODELS}
    rows = measured_before(MODELS.keys() - wanted.keys())
    for model, (_, shares) in (QUICK_MODELS if options.quick else wanted).items():
        bench = Bench(model)
        for share in shares:
            rows += bench.rows(share)
            own = [row for row in rows if (row.model, row.share) == (model, share)]
            print(f"{model} at {share:.0%}:", *(f"{row.sync} {row.seconds:.3g}" for row in own), flush=True)
    show(rows)
    over_server = gains(rows, "parameter-server")
    next_best = {way: min(gains(rows, way).values()) for way in SYNCHRONISATIONS if way != "passing"}
    closest = min(next_best, key=lambda way: next_best[way])
    figures = {
        "most_over_server": round(max(over_server.values()), 3),
        "least_over_server": round(min(over_server.values()), 3),
        "closest": closest,
        "least_over_closest": round(next_best[closest], 3),
        "worst_simulated": round(max((abs(row.simulated / row.seconds - 1) for row in rows), default=0.0), 3),
        "not_trusted": sum(not row.trusted for row in rows),
    }
    fastest = all(gain > 1.0 for way in next_best for (_, share), gain in gains(rows, way).items() if share == 1.0)
    holds = max(over_server.values()) >= REPORTED and next_best[closest] >= 1 / NEAR and fastest
    finish("sync_training", figures, rows=[asdict(row) for row in rows], holds=holds, check=options.check)


if __name__ == "__main__":
    main()
