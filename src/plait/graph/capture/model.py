"""Capture: an ordinary model and one example batch become a `Captured`, torch.export's graph of the loss.

The capture is non-strict and in training mode, with the batch dimension left open, and works on real,
`meta` or fake weights. Everything a user can get wrong here ends in a `CaptureError` that names the
module and the line.
"""

import inspect
import io
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch.export import Dim

from plait.graph.capture.assertions import drop_assertions
from plait.graph.capture.decisions import Path, answered
from plait.graph.capture.hidden_shapes import hidden_shapes
from plait.graph.capture.lengths import open_lengths
from plait.graph.capture.observe import Observed, Reason, observe
from plait.graph.capture.opaque import in_one_piece, write_calls
from plait.graph.capture.paths import one_graph
from plait.graph.capture.remembered import remembered_shapes
from plait.graph.capture.sizes import ROWS, sizes_from_rows
from plait.graph.capture.watch import module_stack, refuse_custom_autograd, refuse_new_buffers, refuse_other_generators
from plait.graph.errors import CaptureError, Place, user_line

Loss = Callable[[Any, Any], Tensor]


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
    module = _capture_around(wrapper, batch)
    placeholders = [node for node in module.graph.find_nodes(op="placeholder") if node.target != ROWS]
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


def _capture_around(wrapper: LossOf, batch: Any) -> fx.GraphModule:
    """Captures what can be captured; the smallest modules that cannot stay in one piece."""
    reasons: dict[str, Reason] = {}
    seen: dict[str, Observed] = {}
    while True:
        try:
            return one_graph(partial(_export, wrapper, batch, seen))
        except CaptureError as error:
            if error.at is None or not error.at.path or error.at.path in reasons:
                raise
            alike = [n for n, m in wrapper.model.named_modules() if n and type(m).__name__ == error.at.kind]
            reasons |= dict.fromkeys(alike, Reason(error.cause, error.branches))
            try:
                seen = observe(wrapper.model, wrapper, lambda rows: _with_rows(batch, rows), reasons)
            except CaptureError:
                raise
            except Exception:  # noqa: BLE001 - the model does not run either (or has no values, on `meta`)
                raise error from None


def _with_rows(batch: Any, rows: int) -> Any:
    """The batch with its first rows, repeated where it has fewer."""
    given = batch_rows(batch)

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not _is_batched(leaf, given):
            return leaf
        if leaf.device.type == "meta":
            return leaf.new_empty(rows, *leaf.shape[1:])
        return leaf[torch.arange(rows, device=leaf.device) % given]

    return pytree.tree_map(resized, batch)


def _export(wrapper: LossOf, batch: Any, seen: Mapping[str, Observed], path: Path) -> fx.GraphModule:
    """The nodes the model runs on one path through its branches, modules in `seen` as one node each."""
    rows = batch_rows(batch)
    dims = pytree.tree_map(
        lambda leaf: {0: Dim.AUTO} if isinstance(leaf, Tensor) and _is_batched(leaf, rows) else None, batch
    )
    with (
        module_stack(wrapper.model) as stack,
        refuse_custom_autograd(stack),
        refuse_new_buffers(stack),
        refuse_other_generators(wrapper.model),
        answered(path, stack),
        hidden_shapes(),
        open_lengths(),
        remembered_shapes(),
        in_one_piece(wrapper.model, seen),
    ):
        try:
            with redirect_stderr(io.StringIO()):  # PyTorch prints a whole graph there for what is told in one line here
                exported = torch.export.export(wrapper, (batch,), strict=False, dynamic_shapes=(dims,))
        except CaptureError:
            raise
        except Exception as error:
            raise _explained(error, stack[-1]) from error
    module = exported.module(check_guards=False)
    write_calls(module)
    drop_assertions(module.graph)
    sizes_from_rows(module.graph)
    return module


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


def _explained(error: Exception, place: Place) -> CaptureError:
    line = user_line(traceback.extract_tb(error.__traceback__))
    summary = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
    return CaptureError(
        f"the model cannot be captured: in module {place}, {line}: {summary}. "
        "Usual causes: a Python branch or loop that depends on a tensor's value, or code outside PyTorch. "
        "Rewrite it with tensor operations (torch.where, masks) or move it out of the forward.",
        at=place,
        cause=f"{line}: {summary}",
        branches=True,
    )
