"""How a flat tensor is cut so that its phases can overlap."""

from torch import Tensor

CHUNK_BYTES = 2 * 2**20


def chunks_of(tensor: Tensor, chunk_bytes: int | None) -> list[Tensor]:
    """Even parts of at most `chunk_bytes`, or all of it; at least one, and none longer than the first.

    >>> import torch
    >>> [len(chunk) for chunk in chunks_of(torch.zeros(10), 16)]
    [4, 3, 3]
    """
    if chunk_bytes is None:
        return [tensor]
    count = max(1, -(-tensor.numel() * tensor.element_size() // chunk_bytes))
    return list(tensor.tensor_split(count))
