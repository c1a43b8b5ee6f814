"""Watching a model while it is captured: where it is, and what a capture would silently get wrong."""

import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from plait.graph.errors import CaptureError, Place, user_line


@contextmanager
def module_stack(model: nn.Module) -> Iterator[list[Place]]:
    """While capturing, the modules being called, innermost last; kept as it was at an error."""
    stack = [Place("", type(model).__name__)]
    handles = []
    for name, module in model.named_modules():
        place = Place(name, type(module).__name__)
        handles.append(module.register_forward_pre_hook(lambda *_, place=place: stack.append(place)))
        handles.append(module.register_forward_hook(lambda *_: stack.pop() and None))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def refuse_custom_autograd(stack: list[Place]) -> Iterator[None]:
    """A custom `autograd.Function`'s own backward is lost by the capture, silently: refuse it instead."""
    original = torch.autograd.Function.__dict__["apply"]  # the descriptor: the attribute would be bound to the base

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch."):
            return original.__func__(cls, *args, **kwargs)
        raise CaptureError(
            f"module {stack[-1]} calls {cls.__qualname__}, an autograd.Function "
            f"with a backward of its own ({user_line(traceback.extract_stack())}), which a capture cannot "
            "keep. Register it as an operator instead (torch.library.custom_op with register_autograd), or "
            "write its forward in plain PyTorch operations, or call it in a module of its own, which then stays in one "
            "piece.",
            at=stack[-1],
            cause=f"it calls {cls.__qualname__}, an autograd.Function with a backward of its own",
        )

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


@contextmanager
def refuse_new_buffers(stack: list[Place]) -> Iterator[None]:
    """A buffer given a new tensor (`self.mean = ...`) keeps its old one in the capture, silently: refuse it."""
    original = nn.Module.__setattr__

    def assign(module: nn.Module, name: str, value: Any) -> None:
        buffer = module.__dict__.get("_buffers", {}).get(name)
        if len(stack) > 1 and isinstance(value, Tensor) and buffer is not None and value is not buffer:
            raise CaptureError(
                f"module {stack[-1]} gives its buffer {name!r} a new tensor in its forward "
                f"({user_line(traceback.extract_stack())}), which a capture cannot keep. Write into the old one "
                f"instead: `self.{name}.copy_(...)`."
            )
        original(module, name, value)

    nn.Module.__setattr__ = assign  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.__setattr__ = original  # type: ignore[method-assign]


@contextmanager
def refuse_other_generators(model: nn.Module) -> Iterator[None]:
    """A number from Python's or NumPy's generator would be drawn once, at capture, and never again."""
    drawn = _drawn()

    def check(module: nn.Module, *_: Any) -> None:
        if _drawn() != drawn:
            place = next(Place(n, type(m).__name__) for n, m in model.named_modules() if m is module)
            raise CaptureError(
                f"module {place} draws from Python's or NumPy's random generator, which a capture cannot keep. Draw "
                "with torch.rand, or draw in a module of its own, which then stays in one piece.",
                at=place,
                cause="it draws from Python's or NumPy's random generator",
                branches=True,
            )

    handles = [module.register_forward_hook(check) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _drawn() -> tuple[Any, ...]:
    """Changes with every number drawn."""
    numpy = sys.modules.get("numpy")
    return random.getstate()[1], numpy.random.get_state()[2] if numpy is not None else None
