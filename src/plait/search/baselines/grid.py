"""The best uniform grid, as a Megatron user would sweep it: data parallel x pipeline x tensor parallel.

Every dp, pp and tp with dp * pp * tp <= devices, stages of equal compute or of whole layers, micro-batches of 1, 2, 4,
… rows a replica; 1F1B, and interleaved 1F1B with two stages at each position. Devices are dealt as Megatron deals
ranks: tensor parallel fastest, then data parallel, pipeline last. So position p holds the dp tp devices from p dp tp on
in file order, a tensor group is inside a host, and a data-parallel group where it fits. The quick formula ranks the
grid, with each tensor group as one device (`shared`); the simulator judges the best few. On more than `_LARGE` devices
grids that leave half of them idle are left out, and interleaved ones.
"""

from collections.abc import Iterator

import numpy as np

from plait.plan import Plan
from plait.search.baselines.blocks import Numbers
from plait.search.baselines.choose import Option, best_plan, options
from plait.search.baselines.even_split import even_boundaries
from plait.search.baselines.layout import Layout
from plait.search.baselines.setting import Setting
from plait.search.baselines.shared import group_sizes, shared_problem
from plait.search.problem import Problem

_LARGE = 128
_ROUNDS = 2  # stages at each position of an interleaved schedule


def grid(problem: Problem) -> Plan:
    return best_plan("grid", problem, grid_options(problem))


def grid_options(problem: Problem) -> Iterator[Option]:
    for tensor in group_sizes(problem):
        yield from _options(problem, tensor)


def _options(asked: Problem, tensor: int) -> Iterator[Option]:
    setting = Setting(shared_problem(asked, tensor))
    devices, atoms = len(setting.devices) // tensor, len(setting.atoms)  # groups of them
    most = min(devices, atoms)
    most_interleaved = min(_ROUNDS * most, atoms) if devices <= _LARGE else 1
    splits = list(even_boundaries(setting, max(most, most_interleaved)))
    for pipeline in range(1, most + 1):
        fewest = devices // (2 * pipeline) + 1 if devices > _LARGE else 1
        for data in range(fewest, min(devices // pipeline, setting.problem.batch_size) + 1):
            groups = tuple(
                tuple(tensor * group for group in range(place * data, (place + 1) * data)) for place in range(pipeline)
            )
            counts = _counts(setting.problem, data)

            def layout(
                boundaries: tuple[int, ...], rounds: int, groups: tuple[tuple[int, ...], ...] = groups
            ) -> Layout:
                return Layout(setting, boundaries, groups * rounds, tensor=tensor, asked=asked)

            for boundaries in splits[pipeline - 1]:
                yield from options(layout(boundaries, 1), "1f1b", counts)
            if 1 < pipeline <= most_interleaved // _ROUNDS:
                for boundaries in splits[_ROUNDS * pipeline - 1]:
                    yield from options(layout(boundaries, _ROUNDS), "interleaved", counts)


def _counts(problem: Problem, data: int) -> Numbers:
    """Micro-batches of a power of two rows a replica."""
    most = problem.batch_size // data
    if problem.micro_batches is not None:
        return np.array([problem.micro_batches] if problem.micro_batches <= most else [], dtype=np.int64)
    return np.array(sorted({most // 2**k for k in range(most.bit_length())}), dtype=np.int64)
