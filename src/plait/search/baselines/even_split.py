"""An even split: one stage per device, in file order, with the least bottleneck of compute, links ignored.

What `torchgpipe` calls balancing by time, and what people do by hand. Devices are taken to be alike, as the first one;
micro-batches are the best of a sweep.
"""

from collections.abc import Iterator
from itertools import repeat

from plait.plan import Plan
from plait.search.baselines.blocks import between
from plait.search.baselines.choose import best_plan, options
from plait.search.baselines.layout import Layout
from plait.search.baselines.min_max import min_max
from plait.search.baselines.setting import Setting
from plait.search.problem import Problem


def even_split(name: str, schedule: str, problem: Problem) -> Plan:
    setting = Setting(problem)
    most = min(len(setting.devices), len(setting.atoms))
    *_, boundaries = even_boundaries(setting, most)
    layout = Layout(setting, boundaries, tuple((device,) for device in setting.devices[:most]))
    return best_plan(name, problem, options(layout, schedule))


def even_boundaries(setting: Setting, most: int) -> Iterator[tuple[int, ...]]:
    """For 1, 2, … `most` stages, where the chain is parted.

    The time of an operation is counted at the rows a device gets when the batch is dealt to all: how even a split is
    hardly depends on it.
    """
    atoms = setting.atoms
    rows = max(1.0, setting.problem.batch_size / len(setting.devices))
    load = between(atoms.seconds(setting.kind, rows))
    for _, boundaries in min_max(repeat(load, most)):
        yield atoms.atoms(boundaries)
