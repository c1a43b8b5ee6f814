"""A user's batch as the executor sees it: tensors by input name."""

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from plait.graph import batch_rows
from plait.graph.capture import Captured
from plait.run.backend import StepInputs
from plait.run.errors import BadBatch


def arranged(batch: Any, description: Any, *, place: str = "the batch") -> Any:
    """The batch with the keys of its dictionaries in the order of the plan's description, which the capture had.

    Raises BadBatch where its structure, its constants or anything but its number of rows differs from that.
    """
    if not isinstance(description, dict):
        return batch
    if "dict" in description:
        return _arranged_dict(batch, description["dict"], place)
    for kind, wanted in (("tuple", tuple), ("list", list)):
        if kind in description:
            parts = description[kind]
            if not isinstance(batch, (tuple, list)) or len(batch) != len(parts):
                raise BadBatch(f"{place} is {_kind(batch)}, but the plan was made with a {kind} of {len(parts)}.")
            return wanted(arranged(batch[i], part, place=f"{place}[{i}]") for i, part in enumerate(parts))
    if "tensor" in description:
        return _checked_tensor(batch, description["tensor"], place)
    if "constant" in description and (isinstance(batch, Tensor) or batch != description["constant"]):
        raise BadBatch(
            f"{place} is {batch!r}, but the model was captured with {description['constant']!r}, and a capture keeps "
            "numbers as they were. Make it a tensor if it changes."
        )
    return batch


def _arranged_dict(batch: Any, parts: dict[str, Any], place: str) -> dict[Any, Any]:
    keys = {str(key): key for key in batch} if isinstance(batch, dict) else {}
    if set(keys) != set(parts):
        raise BadBatch(
            f"{place} is {_kind(batch)}, but the plan was made with a dictionary of {', '.join(parts)}. Give every "
            "batch the structure of the example batch."
        )
    return {keys[key]: arranged(batch[keys[key]], part, place=f"{place}[{key!r}]") for key, part in parts.items()}


def _checked_tensor(batch: Any, shape: list[int], place: str) -> Any:
    if not isinstance(batch, Tensor):
        raise BadBatch(f"{place} is {_kind(batch)}, but the plan was made with a tensor.")
    if list(batch.shape[1:]) != shape[1:] or batch.dim() != len(shape):
        raise BadBatch(
            f"{place} has shape {tuple(batch.shape)}, but the plan was made with {tuple(shape)}; only the number of "
            "rows may differ. Pad or crop the batch, or plan again with this shape."
        )
    return batch


def _kind(batch: Any) -> str:
    if isinstance(batch, dict):
        return f"a dictionary of {', '.join(map(str, batch))}"
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"


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
    if rows == 0:
        raise BadBatch("the batch has no rows; leave empty batches out.")
    for name, batched, leaf in zip(captured.input_names, captured.input_batched, leaves, strict=True):
        if batched and leaf.shape[0] != rows:
            raise BadBatch(f"{name} has {leaf.shape[0]} rows where the batch has {rows}; all tensors need the same.")
    return StepInputs(
        tensors={n: leaf.to(device) for n, leaf in zip(captured.input_names, leaves, strict=True)},
        batched=dict(zip(captured.input_names, captured.input_batched, strict=True)),
        step=step,
        seed=seed,
    )
