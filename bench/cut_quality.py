"""Bytes across the best four-stage cut: the searched order of the atoms against the order the model's code runs in.

Claim: never more, and fewer for at least two models. The rule is the same for both orders: of all ways to cut the
chain into four stages, none of which has more than 1.25 times its share of the work, the fewest bytes over the three
cuts, for a micro-batch of 8 rows. Work is forward and backward time, computed for a V100 from operations and memory
traffic, or as measured by the profile. ResNet50 is PipeDream's public profile; the others are captured on `meta`.
Beside it, without a claim: how many other numbers of stages (2, 3, 6, 8) and rules (1.1, 1.25, 1.5) gain and lose.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from _branching import CellNetwork, DenseNet, TwoTowers
from _harness import arguments, finish
from plait.cluster.presets import PRESETS
from plait.cost.analytic import analytic_costs
from plait.graph import Graph, Loss, build_graph
from plait.graph.reorder import cheapest_chain, reordered
from plait.jobs import load_job
from plait.search.partition import crossing_bytes

STAGES = 4
UNEVEN = 1.25  # largest stage, in shares of the work
ROWS = 8
KIND = PRESETS["v100"]
FEWEST_BETTER = 2
OTHER_STAGES, OTHER_UNEVEN = (2, 3, 6, 8), (1.1, 1.25, 1.5)
PROFILES = Path(os.environ.get("PLAIT_PROFILES") or Path(__file__).parents[2] / "shared" / "profiles")


@dataclass(frozen=True)
class Case:
    """A graph in the order its code runs in, and the seconds of each atom."""

    name: str
    graph: Graph
    seconds: Sequence[float]


@dataclass(frozen=True)
class Row:
    model: str
    atoms: int
    written_bytes: float
    searched_bytes: float
    search_seconds: float
    elsewhere: tuple[float, ...]  # ratios for other numbers of stages and other rules

    @property
    def ratio(self) -> float:
        return self.searched_bytes / self.written_bytes


def cases() -> Iterator[Case]:
    yield from profile_case("resnet50.txt")
    for job in ("inception-v3", "unet"):
        yield job_case(job)
    yield module_case("two towers", TwoTowers)
    yield module_case("cells", CellNetwork)
    yield module_case("densenet121", DenseNet)


def profile_case(name: str) -> Iterator[Case]:
    """A profile that is not shipped here, where it is at hand."""
    from plait.graph.profiles import load_profile, profile_graph

    if not (PROFILES / name).is_file():
        print(f"{name} is left out: it is public in github.com/msr-fiddle/pipedream; name its folder in PLAIT_PROFILES")
        return
    profile = load_profile(PROFILES / name)
    graph = profile_graph(profile, search_order=False)
    ways = [[profile.node_by_name[node].plain for node in atom.nodes] for atom in graph.atoms]
    yield Case(f"{name} (profile)", graph, [sum(w.forward_seconds + w.backward_seconds for w in atom) for atom in ways])


def job_case(name: str) -> Case:
    job = load_job(name)
    with torch.device("meta"):
        module = job.model()
    return captured_case(name, module, next(iter(job.batches(2, 0))), job.loss)


def module_case(name: str, make: Callable[[], TwoTowers | CellNetwork | DenseNet]) -> Case:
    with torch.device("meta"):
        module = make()
        return captured_case(name, module, module.batch(2), None)


def captured_case(name: str, module: nn.Module, batch: Any, loss: Loss | None) -> Case:
    batch = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("meta"), batch)
    model = build_graph(module, batch, loss=loss, name=name, search_order=False)
    costs = analytic_costs(model, batch, kinds=[KIND], state_bytes_per_byte=2.0).atoms[KIND.name]
    per_row = [cost.forward_per_row + cost.backward_per_row for cost in costs]
    fixed = [cost.forward_fixed + cost.backward_fixed for cost in costs]
    return Case(name, model.graph, [a + ROWS * b for a, b in zip(fixed, per_row, strict=True)])


def fewest_bytes(graph: Graph, seconds: Sequence[float], stages: int = STAGES, uneven: float = UNEVEN) -> float:
    """Over the cuts between stages of at most `uneven` shares of the work each; infinite where there are none."""
    done = np.array([0.0, *accumulate(seconds)])
    limit = uneven * done[-1] / stages * (1 + 1e-9)
    crossing = crossing_bytes(graph, ROWS)
    fewest = np.full(len(done), np.inf)
    fewest[0] = 0.0
    for stage in range(stages):
        before = fewest + crossing if stage else fewest
        starts = np.searchsorted(done, done - limit)
        fewest = np.array([np.inf, *(before[starts[end] : end].min(initial=np.inf) for end in range(1, len(done)))])
    return float(fewest[-1])


def compare(case: Case) -> Row:
    start = time.process_time()
    order = cheapest_chain(case.graph)
    taken = time.process_time() - start
    graph, seconds = reordered(case.graph, order), [case.seconds[atom] for atom in order]

    def both(*rule: Any) -> tuple[float, float]:
        return fewest_bytes(case.graph, case.seconds, *rule), fewest_bytes(graph, seconds, *rule)

    pairs = [both(stages, uneven) for stages in OTHER_STAGES for uneven in OTHER_UNEVEN]
    elsewhere = tuple(searched / written for written, searched in pairs if math.isfinite(min(written, searched)))
    return Row(case.name, len(case.graph.atoms), *both(), taken, elsewhere)


def tally(ratios: Sequence[float]) -> tuple[int, int, int]:
    return sum(r < 1 for r in ratios), sum(r == 1 for r in ratios), sum(r > 1 for r in ratios)


def main() -> None:
    options = arguments(__doc__)
    rows = [compare(case) for case in cases()]
    table = Table(title=f"{STAGES} stages, micro-batch of {ROWS} rows, MB over all cuts")
    for name in ("model", "atoms", "as written", "searched", "ratio", "elsewhere < = >", "search, CPU s"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in rows:
        table.add_row(
            row.model,
            str(row.atoms),
            *(f"{num_bytes / 1e6:.2f}" for num_bytes in (row.written_bytes, row.searched_bytes)),
            f"{row.ratio:.3f}",
            " ".join(str(count) for count in tally(row.elsewhere)),
            f"{row.search_seconds:.2f}",
        )
    Console(width=110).print(table)
    better = sum(row.ratio < 1 for row in rows)
    figures = {
        "models": len(rows),
        "better": better,
        "worse": sum(row.ratio > 1 for row in rows),
        "best_ratio": f"{min(row.ratio for row in rows):.3f}",
        "elsewhere_better_equal_worse": "/".join(map(str, tally([r for row in rows for r in row.elsewhere]))),
        "longest_search_cpu_seconds": f"{max(row.search_seconds for row in rows):.2f}",
    }
    finish(
        "cut_quality",
        figures,
        rows=[vars(row) | {"ratio": row.ratio} for row in rows],
        holds=all(row.ratio <= 1 for row in rows) and better >= FEWEST_BETTER,
        check=options.check,
    )


if __name__ == "__main__":
    main()
