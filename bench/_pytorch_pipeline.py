"""A model split and trained one step by `torch.distributed.pipelining`: the tracer, GPipe, two processes over gloo."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining.stage as pipeline_stages
from torch import Tensor, nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline

from _forks import on_ranks
from plait.cli.verify import largest_difference
from plait.graph.capture import loss_in

STAGES = 2


@dataclass(frozen=True)
class Call:
    """How a model is called with a whole batch, and how its loss is found in what it returns."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Tensor
    loss: Callable[[Any, Tensor], Tensor]

    def rows(self, first: int, last: int) -> "Call":
        def part(leaf: Any) -> Any:
            return leaf[first:last] if isinstance(leaf, Tensor) else leaf

        kwargs = {name: part(leaf) for name, leaf in self.kwargs.items()}
        return Call(tuple(map(part, self.args)), kwargs, self.target[first:last], self.loss)

    @property
    def num_rows(self) -> int:
        return self.target.size(0)


@dataclass
class Trained:
    """The mean loss of the micro-batches, and gradients and buffers of each stage (of the model: one stage)."""

    loss: float
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)


def as_given(batch: Mapping[str, Any]) -> Call:
    """The loss is in the model: the schedule's own loss only hands on what the model returned."""
    rows = next(t.size(0) for t in batch.values() if isinstance(t, Tensor))
    return Call((), batch, torch.zeros(rows), lambda outputs, _: loss_in(outputs))


def split(model: nn.Module, call: Call, middle: str, micro_batches: int) -> Any:
    """The traced pipeline of two stages, the second of which begins with module `middle`."""
    one = call.rows(0, call.num_rows // micro_batches)
    pipe = pipeline(model, one.args, dict(one.kwargs), {middle: SplitPoint.BEGINNING})
    if pipe.num_stages != STAGES:
        raise RuntimeError(f"split into {pipe.num_stages} stages, not {STAGES}")
    return pipe


def train_split(pipe: Any, call: Call, micro_batches: int, seconds: float, *, mended: bool = False) -> Trained:
    """One step on two processes, `mended` or not (see `_mend_transport`)."""

    def work(rank: int) -> dict[str, Any]:
        if mended:
            _mend_transport()
        stage = pipe.build_stage(rank, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, micro_batches, loss_fn=call.loss)
        losses: list[Tensor] = []
        args, kwargs = _asked_for(stage.submod, call)
        last: dict[str, Any] = {"target": call.target, "losses": losses} if stage.is_last else {}
        schedule.step(*args, **kwargs, **last)
        return {
            "gradients": _gradients(stage.submod),
            "buffers": dict(stage.submod.named_buffers()),
            "loss": sum(loss.item() for loss in losses) / micro_batches,
        }

    ranks = on_ranks(STAGES, work, seconds)
    buffers = {name: buffer for rank in reversed(ranks) for name, buffer in rank["buffers"].items()}
    return Trained(ranks[-1]["loss"], [rank["gradients"] for rank in ranks], buffers)


def _mend_transport() -> None:
    """Has this process send and receive contiguous tensors, which gloo asks for and PyTorch's stages do not see to."""
    pipeline_stages._make_tensor_from_meta = lambda meta, device: torch.empty(
        meta.shape, dtype=meta.dtype, device=device
    )
    original = dist.P2POp.__init__

    def contiguous(self: Any, op: Any, tensor: Tensor, *rest: Any, **options: Any) -> None:
        original(self, op, tensor.contiguous() if op is dist.isend else tensor, *rest, **options)

    dist.P2POp.__init__ = contiguous  # type: ignore[method-assign]


def _asked_for(stage: nn.Module, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The batch's tensors that a stage names as inputs of its own: PyTorch has its user hand each stage its part."""
    wanted = [node.target for node in stage.graph.nodes if node.op == "placeholder"]  # type: ignore[union-attr]
    positional = {f"tensors_{n}": tensor for n, tensor in enumerate(call.args)}
    args = tuple(positional[name] for name in wanted if name in positional)
    return args, {name: leaf for name, leaf in call.kwargs.items() if name in wanted}


def train_whole(model: nn.Module, call: Call, micro_batches: int) -> Trained:
    """The same step of the same model in one piece."""
    model, total, first = copy.deepcopy(model), 0.0, 0
    for _ in range(micro_batches):
        one = call.rows(first, first := first + call.num_rows // micro_batches)
        loss = call.loss(model(*one.args, **one.kwargs), one.target) / micro_batches
        loss.backward()
        total += loss.item()
    return Trained(total, [_gradients(model)], dict(model.named_buffers()))


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter to its first: tied ones have several."""
    first: dict[int, str] = {}
    return {n: first.setdefault(id(p), n) for n, p in model.named_parameters(remove_duplicate=False)}


def distance(found: Trained, whole: Trained, first: dict[str, str], *, sum_tied: bool) -> float:
    """The largest relative difference of loss, gradients and buffers; infinite where a gradient is missing."""
    wanted = whole.gradients[0]
    stages = [_summed([stage], first) for stage in found.gradients]
    if sum_tied:
        stages = [_summed(found.gradients, first)]
    missing = set(wanted) - {name for stage in stages for name in stage}
    if any(float(wanted[name].abs().max()) > 0 for name in missing):
        return math.inf
    written = {n: whole.buffers[n] for n in found.buffers.keys() & whole.buffers.keys()}
    return max(
        abs(found.loss - whole.loss) / abs(whole.loss),
        largest_difference(found.buffers, written),
        *(largest_difference(stage, {n: wanted[n] for n in stage}) for stage in stages),
    )


def _summed(stages: Iterable[dict[str, Tensor]], first: dict[str, str]) -> dict[str, Tensor]:
    """Gradients by the first name of their parameter, which may have another name, or several, in a stage."""
    total: dict[str, Tensor] = {}
    for stage in stages:
        for alias, gradient in stage.items():
            name = first[alias]
            total[name] = total[name] + gradient if name in total else gradient
    return total
