"""A small reference runner: stages of a captured model in one process, rows split over threads if wanted.

It stands for the runtime in the tests of cutting: every stage runs on a copy of its parameters and buffers,
and nothing but the values of the cut passes between two stages.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from plait.graph import Loss, Model, Value, batch_rows
from plait.graph.capture import call_model, loss_in
from plait.graph.cut import cut
from plait.graph.stage import StageCode, build_stage

Span = tuple[int, int]
_SMALL = 0.1  # what is smaller is what rounding leaves of larger terms


@dataclass(frozen=True)
class Outcome:
    """What one forward and backward leave behind."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def run_eagerly(module: nn.Module, batch: Any, *, loss: Loss | None = None) -> Outcome:
    """The model as its author wrote it, on one device."""
    module, batch = copy.deepcopy(module).train(), copy.deepcopy(batch)
    outputs = call_model(module, batch, with_targets=loss is None)
    result = loss(outputs, batch) if loss is not None else loss_in(outputs)
    result.backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return Outcome(result.detach(), gradients, {name: b.clone() for name, b in module.named_buffers()})


def run_staged(
    model: Model, batch: Any, boundaries: Sequence[int] = (), *, spans: Sequence[Sequence[Span]] | None = None
) -> Outcome:
    """The captured model cut at `boundaries`; `spans[stage]` are the rows of each of the stage's replicas."""
    rows = batch_rows(batch)
    cuts = cut(model.graph, boundaries)
    stages = [_Stage(model, part, spans[part.index] if spans else [(0, rows)], batch) for part in cuts]
    values: dict[str, Tensor] = {}
    for stage in stages:
        stage.forward(values)
    gradients: dict[str, Tensor] = {}
    for stage in reversed(stages):
        stage.backward(gradients)
    return Outcome(
        loss=stages[-1].loss,
        gradients=_added(gradient for stage in stages for gradient in stage.parameter_gradients()),
        buffers={name: buffer for stage in stages for name, buffer in stage.buffers().items()},
    )


def assert_same(found: Outcome, expected: Outcome, *, tolerance: float = 1e-12) -> None:
    assert_close("loss", found.loss, expected.loss, tolerance)
    assert set(_not_zero(found.gradients, tolerance)) == set(_not_zero(expected.gradients, tolerance))
    for name in expected.gradients.keys() & found.gradients.keys():
        assert_close(f"gradient of {name}", found.gradients[name], expected.gradients[name], tolerance)
    for name, buffer in found.buffers.items():
        assert_close(f"buffer {name}", buffer, expected.buffers[name], tolerance)


def assert_close(what: str, found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    """Equal to within `tolerance` of the largest entry, or of `_SMALL` where all are smaller (a sum that cancels)."""
    largest = expected.double().abs().max().item() if expected.numel() else 0.0  # masks are buffers too
    difference = (found.double() - expected.double()).abs().max().item() if expected.numel() else 0.0
    assert found.shape == expected.shape, f"{what}: {tuple(found.shape)}, not {tuple(expected.shape)}"
    assert difference <= tolerance * max(largest, _SMALL), f"{what} differs by {difference} (largest entry {largest})"


def _not_zero(gradients: dict[str, Tensor], tolerance: float) -> list[str]:
    """Where all terms cancel (a bias before a BatchNorm), their order decides whether rounding leaves anything."""
    return [name for name, gradient in gradients.items() if gradient.abs().max() > tolerance * _SMALL]


def _added(pairs: Any) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for name, tensor in pairs:
        total[name] = total[name] + tensor if name in total else tensor
    return total


class Meeting:
    """Where the replicas of a stage, each on a thread, exchange tensors."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.brought: list[Any] = [None] * size

    def exchange(self, member: int, tensor: Tensor) -> list[Tensor]:
        self.brought[member] = tensor
        self.barrier.wait()
        everything = [t.clone() for t in self.brought]
        self.barrier.wait()
        return everything


@dataclass
class FakeReplicas:
    """`plait.graph.synced.Replicas` for threads of one process."""

    meeting: Meeting
    member: int

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self.meeting.exchange(self.member, tensor)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return torch.stack(self.meeting.exchange(self.member, tensor)).sum(0)

    def __deepcopy__(self, memo: Any) -> "FakeReplicas":
        return self


def on_threads(size: int, work: Callable[[int], None]) -> None:
    """Runs `work(0..size-1)` at the same time; an error in any of them is raised here."""
    errors: list[BaseException] = []

    def guarded(member: int) -> None:
        try:
            work(member)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(member,)) for member in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class _Stage:
    """One stage on its replicas."""

    def __init__(self, model: Model, part: Any, spans: Sequence[Span], batch: Any) -> None:
        leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
        self.inputs = dict(zip(model.captured.input_names, leaves, strict=True))
        self.batched = dict(zip(model.captured.input_names, model.captured.input_batched, strict=True))
        self.rows = batch_rows(batch)
        self.spans = spans
        self.cut = part
        meeting = Meeting(len(spans))
        self.codes: list[StageCode] = [
            build_stage(model, part, split_rows=len(spans) > 1, replicas=FakeReplicas(meeting, member))
            for member in range(len(spans))
        ]
        self.modules: list[fx.GraphModule] = [copy.deepcopy(code.module) for code in self.codes]
        self.received: list[dict[str, Tensor]] = [{} for _ in spans]
        self.sent: list[dict[str, Tensor]] = [{} for _ in spans]
        self.losses: list[Tensor] = [torch.zeros(()) for _ in spans]

    def forward(self, values: dict[str, Tensor]) -> None:
        on_threads(len(self.spans), lambda member: self._forward(member, values))
        for value in self.cut.sends:
            parts = [sent[value.name].detach() for sent in self.sent]
            values[value.name] = parts[0] if value.batch_dim is None else torch.cat(parts, value.batch_dim)

    def _forward(self, member: int, values: dict[str, Tensor]) -> None:
        code, (first, last) = self.codes[member], self.spans[member]
        for value in self.cut.receives:
            # Whatever its strides were, a tensor arrives contiguous.
            part = _rows(value, values[value.name], first, last).clone(memory_format=torch.contiguous_format)
            self.received[member][value.name] = part.requires_grad_(value.requires_grad)
        own = [self.inputs[n][first:last] if self.batched[n] else self.inputs[n] for n in code.inputs]
        extra: list[Any] = []
        if code.count_targets is not None:
            totals = code.count_targets(self.rows, *(self.inputs[name] for name in code.inputs))
            extra = [(last - first) / self.rows, *totals]
        results = self.modules[member](last - first, *own, *self.received[member].values(), *extra)
        self.sent[member] = {v.name: result for v, result in zip(self.cut.sends, results, strict=False)}
        if self.cut.has_loss:
            self.losses[member] = results[-1]

    @property
    def loss(self) -> Tensor:
        """Replicas weigh by their share of the rows."""
        shares = [(last - first) / self.rows for first, last in self.spans]
        return torch.stack([loss.detach() * share for loss, share in zip(self.losses, shares, strict=True)]).sum()

    def backward(self, gradients: dict[str, Tensor]) -> None:
        on_threads(len(self.spans), lambda member: self._backward(member, gradients))
        for value in self.cut.receives:
            if value.requires_grad:
                parts = [_gradient(received[value.name]) for received in self.received]
                whole = torch.stack(parts).sum(0) if value.batch_dim is None else torch.cat(parts, value.batch_dim)
                gradients[value.name] = gradients[value.name] + whole if value.name in gradients else whole

    def _backward(self, member: int, gradients: dict[str, Tensor]) -> None:
        first, last = self.spans[member]
        outputs, incoming = [], []
        for value in self.cut.sends:
            output = self.sent[member][value.name]
            from_one = value.batch_dim is not None or member == 0  # the others' copies were not used
            if value.requires_grad and output.requires_grad and from_one:
                outputs.append(output)
                incoming.append(_rows(value, gradients[value.name], first, last))
        if self.cut.has_loss:
            outputs.append(self.losses[member])
            incoming.append(torch.full_like(self.losses[member], (last - first) / self.rows))
        if outputs:
            torch.autograd.backward(outputs, incoming)

    def parameter_gradients(self) -> Any:
        for module in self.modules:
            yield from ((name, p.grad) for name, p in module.named_parameters() if p.grad is not None)

    def buffers(self) -> dict[str, Tensor]:
        first, *others = [dict(module.named_buffers()) for module in self.modules]
        names = {p.name for p in self.cut.parameters if p.is_buffer}
        for name in names:
            for other in others:
                assert_close(f"replicas' buffer {name}", other[name], first[name])
        return {name: first[name] for name in names}


def _gradient(leaf: Tensor) -> Tensor:
    return leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)


def _rows(value: Value, tensor: Tensor, first: int, last: int) -> Tensor:
    if value.batch_dim is None:
        return tensor
    per_row = value.shape[value.batch_dim]
    return tensor.narrow(value.batch_dim, first * per_row, (last - first) * per_row)
