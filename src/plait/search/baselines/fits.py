"""Which stages a device has the memory for, before it is known what they exchange: [start, end] over blocks."""

import numpy as np
from numpy.typing import NDArray

from plait.search.baselines.blocks import Blocks, between
from plait.search.baselines.setting import Setting

Mask = NDArray[np.bool_]


def fits_on(setting: Setting, blocks: Blocks, device: int, rows: float, in_flight: int) -> Mask:
    """Weights, gradients, optimiser, and the activations of `in_flight` micro-batches of `rows` rows."""
    kind = setting.kinds[device]
    saved = blocks.total(kind, "saved_fixed") + blocks.total(kind, "saved_per_row") * rows
    state = setting.problem.costs.optimizer[kind].state_bytes_per_byte
    held = between(blocks.weights * (2 + state) + in_flight * saved)
    mask: Mask = held <= setting.memory[device]
    return mask


def weights_fit(setting: Setting, blocks: Blocks) -> Mask:
    """Weights, gradients and optimiser fit on every device."""
    smallest = int(np.argmin(setting.memory))
    return fits_on(setting, blocks, smallest, 0.0, 0)
