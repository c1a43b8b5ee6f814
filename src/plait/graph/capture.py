"""Capture: an ordinary model and one example batch become a `Captured`, torch.export's graph of the loss.

The capture is non-strict and in training mode, with the batch dimension left open, and works on real,
`meta` or fake weights. Everything a user can get wrong here ends in a `CaptureError` that names the
module and the line.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch.export import Dim

from plait.errors import PlaitError
from plait.graph.remembered import remembered_shapes

Loss = Callable[[Any, Any], Tensor]


class CaptureError(PlaitError):
    """The model cannot be captured as it is."""


@dataclass(frozen=True)
class Captured:
    """The loss as one fx graph. `module` shares the model's own parameters, under their own names."""

    module: fx.GraphModule
    parameter_names: dict[str, str]  # every alias -> the name it goes by
    input_names: tuple[str, ...]  # one per tensor leaf of the batch, in pytree order
    input_batched: tuple[bool, ...]  # does that leaf have a row per sample?


class LossOf(nn.Module):
    """The model seen as a function from a batch to its scalar loss."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Any) -> Tensor:
        outputs = call_model(self.model, batch, with_targets=self.loss is None)
        result = self.loss(outputs, batch) if self.loss is not None else loss_in(outputs)
        if not isinstance(result, Tensor) or result.dim() != 0:
            raise CaptureError(
                f"the loss is {_describe(result)}, but training needs one number. "
                "Return the mean over the batch, or give `loss(outputs, batch)` (in a job file: a function `loss`)."
            )
        return result


def call_model(model: nn.Module, batch: Any, *, with_targets: bool) -> Any:
    """Calls `model` the way its author would: dictionaries by name, tuples by position.

    Where a separate loss takes the targets, the model gets the dictionary keys its `forward` names, or
    the first element of a tuple.
    """
    if isinstance(batch, dict):
        if with_targets:
            return model(**batch)
        accepted = inspect.signature(model.forward).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        return model(**{k: v for k, v in batch.items() if takes_any or k in accepted})
    if isinstance(batch, (tuple, list)):
        return model(*batch) if with_targets else model(batch[0])
    return model(batch)


def loss_in(outputs: Any) -> Any:
    """The loss among what a model returned: itself, `.loss`, `["loss"]` or the first element."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, dict) and outputs.get("loss") is not None:
        return outputs["loss"]
    if getattr(outputs, "loss", None) is not None:
        return outputs.loss
    if isinstance(outputs, (tuple, list)) and outputs:
        return outputs[0]
    raise CaptureError(
        f"the model returned {_describe(outputs)}, in which no loss was found. Return the loss itself, "
        "an object with `.loss`, or pass `loss(outputs, batch)` (in a job file: `def loss(outputs, batch)`)."
    )


def _describe(result: Any) -> str:
    if isinstance(result, Tensor):
        sizes = ", ".join("rows" if isinstance(size, torch.SymInt) else str(size) for size in result.shape)
        return f"a tensor of shape ({sizes})"
    return f"of type {type(result).__name__}"


def capture(model: nn.Module, batch: Any, *, loss: Loss | None = None) -> Captured:
    """Captures the loss of `model` on batches shaped like `batch`, for any number of rows."""
    batch = _at_least_two_rows(batch)
    leaves = pytree.tree_leaves(batch)
    rows = batch_rows(batch)
    wrapper = LossOf(model, loss).train()
    dims = pytree.tree_map(
        lambda leaf: {0: Dim.AUTO} if isinstance(leaf, Tensor) and _is_batched(leaf, rows) else None, batch
    )
    with (
        _module_stack(model) as stack,
        _refuse_custom_autograd(stack),
        _refuse_new_buffers(stack),
        remembered_shapes(),
    ):
        try:
            exported = torch.export.export(wrapper, (batch,), strict=False, dynamic_shapes=(dims,))
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(_explain(error, stack)) from error
    module = exported.module(check_guards=False)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    names, batched = [], []
    for node, leaf in zip(placeholders, leaves, strict=True):
        if not isinstance(leaf, Tensor):
            continue
        names.append(node.name)
        batched.append(_is_batched(leaf, rows))
        if batched[-1] and not _is_open(node.meta["val"].shape[0]):
            raise CaptureError(
                f"input {node.name!r} works only with exactly {leaf.shape[0]} rows: the model (or its loss) "
                "uses the batch size as a fixed number. Take it from the input's shape instead "
                "(`x.size(0)`), so that micro-batches of another size can be run."
            )
    return Captured(
        module=module,
        parameter_names=_canonical_names(model),
        input_names=tuple(names),
        input_batched=tuple(batched),
    )


def batch_rows(batch: Any) -> int:
    """The number of rows: the size of the first tensor's first dimension."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    raise CaptureError("the batch holds no tensor with a row per sample; give at least one.")


def _is_open(size: int | torch.SymInt) -> bool:
    """Is a size still any number? The capture writes one that it had to fix as a symbolic constant."""
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None


def _is_batched(leaf: Tensor, rows: int) -> bool:
    return leaf.dim() > 0 and leaf.shape[0] == rows


def _at_least_two_rows(batch: Any) -> Any:
    # torch.export takes a dimension of size 1 for a constant; two equal rows keep it open.
    rows = batch_rows(batch)
    if rows == 0:
        raise CaptureError("the example batch has no rows; give at least one sample.")
    if rows > 1:
        return batch
    return pytree.tree_map(
        lambda leaf: (
            torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == 1 else leaf
        ),
        batch,
    )


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter and buffer, as the captured module spells it, to its first name."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for source in (
        model.named_parameters(remove_duplicate=False),
        model.named_buffers(remove_duplicate=False),
    ):
        for name, tensor in source:
            names[f"model.{name}"] = first.setdefault(id(tensor), name)
    return names


@contextmanager
def _module_stack(model: nn.Module) -> Iterator[list[str]]:
    """While capturing, the path of modules being called, innermost last; kept as it was at an error."""
    stack: list[str] = []
    handles = []
    for name, module in model.named_modules():
        label = f"{name or 'the model'} ({type(module).__name__})"
        handles.append(module.register_forward_pre_hook(lambda *_, label=label: stack.append(label)))
        handles.append(module.register_forward_hook(lambda *_: stack.pop() and None))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _refuse_custom_autograd(stack: list[str]) -> Iterator[None]:
    """A custom `autograd.Function`'s own backward is lost by the capture, silently: refuse it instead."""
    original = torch.autograd.Function.__dict__["apply"]  # the descriptor: the attribute would be bound to the base

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch."):
            return original.__func__(cls, *args, **kwargs)
        raise CaptureError(
            f"module {stack[-1] if stack else 'the model'} calls {cls.__qualname__}, an autograd.Function "
            f"with a backward of its own ({_user_line(traceback.extract_stack())}), which a capture cannot "
            "keep. Register it as an operator instead (torch.library.custom_op with register_autograd), or "
            "write its forward in plain PyTorch operations."
        )

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


@contextmanager
def _refuse_new_buffers(stack: list[str]) -> Iterator[None]:
    """A buffer given a new tensor (`self.mean = ...`) keeps its old one in the capture, silently: refuse it."""
    original = nn.Module.__setattr__

    def assign(module: nn.Module, name: str, value: Any) -> None:
        buffer = module.__dict__.get("_buffers", {}).get(name)
        if stack and isinstance(value, Tensor) and buffer is not None and value is not buffer:
            raise CaptureError(
                f"module {stack[-1]} gives its buffer {name!r} a new tensor in its forward "
                f"({_user_line(traceback.extract_stack())}), which a capture cannot keep. Write into the old one "
                f"instead: `self.{name}.copy_(...)`."
            )
        original(module, name, value)

    nn.Module.__setattr__ = assign  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.__setattr__ = original  # type: ignore[method-assign]


def _explain(error: Exception, stack: list[str]) -> str:
    where = f"in module {stack[-1]}" if stack else "in the model"
    line = _user_line(traceback.extract_tb(error.__traceback__))
    summary = str(error).strip().split("\n")[0][:300]
    return (
        f"the model cannot be captured: {where}, {line}: {type(error).__name__}: {summary}. "
        "Usual causes: a Python branch or loop that depends on a tensor's value, or code outside PyTorch. "
        "Rewrite it with tensor operations (torch.where, masks) or move it out of the forward."
    )


def _user_line(frames: traceback.StackSummary) -> str:
    """The innermost frame that is neither PyTorch's nor Plait's."""
    for frame in reversed(frames):
        path = frame.filename.replace("\\", "/")
        if "/torch/" not in path and not path.startswith("<") and "/plait/graph/" not in path:
            return f'file "{frame.filename}", line {frame.lineno}'
    return "line unknown"
