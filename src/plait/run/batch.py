"""A user's batch as the executor sees it: tensors by input name."""

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from plait.graph import batch_rows
from plait.graph.capture import Captured
from plait.run.errors import BadBatch
from plait.run.executor import StepInputs


def named_inputs(
    captured: Captured, batch: Any, *, step: int = 0, seed: int = 0, device: torch.device | str = "cpu"
) -> StepInputs:
    """The batch's tensors under the names the captured graph gives them.

    Raises BadBatch where the batch has another structure than the one the plan was made with, or ragged rows.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    if len(leaves) != len(captured.input_names):
        raise BadBatch(
            f"the batch holds {len(leaves)} tensors, but the model was captured with {len(captured.input_names)} "
            f"({', '.join(captured.input_names)}). Give every batch the structure of the example batch."
        )
    rows = batch_rows(batch)
    for name, batched, leaf in zip(captured.input_names, captured.input_batched, leaves, strict=True):
        if batched and leaf.shape[0] != rows:
            raise BadBatch(f"{name} has {leaf.shape[0]} rows where the batch has {rows}; all tensors need the same.")
    return StepInputs(
        tensors={n: leaf.to(device) for n, leaf in zip(captured.input_names, leaves, strict=True)},
        batched=dict(zip(captured.input_names, captured.input_batched, strict=True)),
        step=step,
        seed=seed,
    )
