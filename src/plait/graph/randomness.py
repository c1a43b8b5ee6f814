"""Random operations that give one device's numbers wherever they run.

Each random node of the captured graph has a number; before it runs, PyTorch's generator is set from
(seed, step, micro-batch, node number). Any plan that keeps a micro-batch's rows whole therefore draws
exactly what one device would. A replica that holds only some of the rows adds the first row's offset:
masks are then independent between replicas and the same in every run.
"""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

# Tagged random by PyTorch, though with this argument at zero (or False) they draw nothing.
_DRAWS_ONLY_WHEN = {
    "scaled_dot_product_attention": "dropout_p",
    "dropout": "train",
    "feature_dropout": "train",
    "alpha_dropout": "train",
    "rrelu": "training",
    "lstm": "dropout",
    "gru": "dropout",
    "rnn_tanh": "dropout",
    "rnn_relu": "dropout",
}


_GENERATOR = threading.Lock()  # PyTorch's generator is the process's, and ranks may be threads of one


@dataclass
class Randomness:
    """Where the run stands: what the next random node's stream is named after."""

    seed: int = 0
    step: int = 0
    micro_batch: int = 0
    row_offset: int = 0

    def stream(self, node_number: int) -> int:
        key = f"{self.seed},{self.step},{self.micro_batch},{self.row_offset},{node_number}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "big")


def seeded(randomness: Randomness, node_number: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a random operation with the generator set to its stream."""
    with _GENERATOR:
        _seed(randomness.stream(node_number))
        return function(*args, **kwargs)


def _seed(number: int) -> None:
    """What `torch.manual_seed` does for the devices in use; those that are not cost it a stack trace each."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def called(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """What a node calls and its positional arguments, seen through the seeding of random ones."""
    if node.target is seeded:
        return node.args[2], node.args[3:]
    return node.target, node.args


def operator_of(node: fx.Node) -> OpOverload | None:
    """The operator a node runs, if it is one."""
    target, _ = called(node)
    return target if isinstance(target, OpOverload) else None


def draws_numbers(node: fx.Node) -> bool:
    """Is this a call of a random operator, with arguments with which it draws?"""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    switch = _DRAWS_ONLY_WHEN.get(node.target._opname.removesuffix("_"))
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.name == switch:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(switch, argument.default_value)
            return bool(value)
    return True
