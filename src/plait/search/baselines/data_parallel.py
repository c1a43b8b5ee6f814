"""Pure data parallelism: the whole model on every device, rows in equal shares, gradients summed at the end.

Micro-batches (gradient accumulation) only as many as memory needs: the fewest with which it fits.
"""

import numpy as np

from plait.errors import PlaitError
from plait.plan import Plan
from plait.search.baselines.choose import Option, fitting_plan, nothing_fits, options
from plait.search.baselines.layout import Layout
from plait.search.baselines.setting import Setting
from plait.search.problem import Problem


def data_parallel(problem: Problem) -> Plan:
    why = nothing_fits("data-parallel", problem)
    for option in data_parallel_options(problem):
        try:
            return fitting_plan(option)
        except PlaitError as error:
            why = str(error)
    raise PlaitError(why)


def data_parallel_options(problem: Problem) -> list[Option]:
    setting = Setting(problem)
    layout = Layout(setting, (), (setting.devices,))
    most = problem.batch_size // len(setting.devices)
    counts = [problem.micro_batches] if problem.micro_batches is not None else range(1, most + 1)
    return options(layout, "1f1b", np.array([count for count in counts if count <= most], dtype=np.int64))
