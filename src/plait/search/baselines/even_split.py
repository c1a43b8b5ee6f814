"""Even splits: stages of about equal compute, with the least bottleneck, links ignored.

Two for every number of stages: one between any two atoms (what `torchgpipe` calls balancing by time), one between
layers alone, as people cut by hand and as Megatron does. The simulator tells which is better. Devices are taken to be
alike, as the first one.
"""

from collections.abc import Iterator
from itertools import pairwise, repeat

import numpy as np

from plait.graph import Graph
from plait.plan import Plan
from plait.search.baselines.blocks import Numbers, between
from plait.search.baselines.choose import Option, best_plan, options
from plait.search.baselines.layout import Layout
from plait.search.baselines.min_max import min_max
from plait.search.baselines.setting import Setting
from plait.search.problem import Problem


def even_split(name: str, schedule: str, problem: Problem) -> Plan:
    """One stage per device, in file order, with the best number of micro-batches."""
    return best_plan(name, problem, even_options(schedule, problem))


def even_options(schedule: str, problem: Problem) -> Iterator[Option]:
    setting = Setting(problem)
    most = min(len(setting.devices), len(setting.atoms))
    *_, splits = even_boundaries(setting, most)
    groups = tuple((device,) for device in setting.devices[:most])
    for boundaries in splits:
        yield from options(Layout(setting, boundaries, groups), schedule)


def even_boundaries(setting: Setting, most: int) -> Iterator[list[tuple[int, ...]]]:
    """For 1, 2, … `most` stages, where the chain is parted, between atoms and between layers.

    The time of an operation is counted at the rows a device gets when the batch is dealt to all: how even a split is
    hardly depends on it.
    """
    rows = max(1.0, setting.problem.batch_size / len(setting.devices))
    layers = setting.atoms.merged(layer_edges(setting.problem.graph))
    found: list[list[tuple[int, ...]]] = [[] for _ in range(most)]
    for blocks in (setting.atoms, layers):
        stages = min(most, len(blocks))
        for splits, (_, boundaries) in zip(
            found, min_max(repeat(between(blocks.seconds(setting.kind, rows)), stages)), strict=False
        ):
            splits.append(blocks.atoms(boundaries))
    return (list(dict.fromkeys(splits)) for splits in found)


def layer_edges(graph: Graph) -> Numbers:
    """Where one layer follows another; a layer is a module up to the first number in its path (`blocks.3`)."""
    layers = [_layer(atom.module) for atom in graph.atoms]
    inner = [place for place, (before, after) in enumerate(pairwise(layers), start=1) if before != after]
    return np.array([0, *inner, len(layers)])


def _layer(module: str) -> tuple[str, ...]:
    parts = module.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts))
    return tuple(parts[: number + 1])
