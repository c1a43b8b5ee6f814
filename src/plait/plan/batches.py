"""The shape of a batch as data: kept in a plan so that its model can be captured again anywhere."""

from typing import Any

import torch
from torch import Tensor

from plait.errors import PlaitError


def describe(batch: Any) -> Any:
    """A JSON-able description of a batch's structure, shapes and types."""
    if isinstance(batch, Tensor):
        return {"tensor": list(batch.shape), "dtype": str(batch.dtype).removeprefix("torch.")}
    if isinstance(batch, dict):
        return {"dict": {str(key): describe(value) for key, value in batch.items()}}
    if isinstance(batch, (tuple, list)):
        return {type(batch).__name__ if type(batch) in (tuple, list) else "tuple": [describe(v) for v in batch]}
    if batch is None or isinstance(batch, (bool, int, float, str)):
        return {"constant": batch}
    raise PlaitError(
        f"a batch holds a {type(batch).__name__}; Plait understands tensors, dictionaries, tuples, lists and numbers."
    )


def example(description: Any) -> Any:
    """A batch of zeros of the described shape."""
    if not isinstance(description, dict) or not description:
        raise PlaitError(f"the plan's description of its batch is damaged ({description!r}). Plan again.")
    if "tensor" in description:
        return torch.zeros(description["tensor"], dtype=getattr(torch, description["dtype"]))
    if "dict" in description:
        return {key: example(value) for key, value in description["dict"].items()}
    if "tuple" in description:
        return tuple(example(value) for value in description["tuple"])
    if "list" in description:
        return [example(value) for value in description["list"]]
    return description.get("constant")
