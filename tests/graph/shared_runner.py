"""A small reference runner for tensor groups: the devices of one group as threads, their parts put together again."""

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from stage_runner import Outcome
from torch import Tensor, fx, nn

from plait.graph import Model, batch_rows
from plait.graph.cut import cut
from plait.graph.sharding.collectives import gather
from plait.graph.sharding.writer import TensorShare
from plait.graph.stage import StageCode, build_stage, take_parts
from plait.run.batch import named_inputs

LIMIT = 60.0


class Meeting:
    """Where the devices of a group leave tensors for one another; a device that fails sends all home."""

    def __init__(self, degree: int) -> None:
        self.degree = degree
        self.barrier = threading.Barrier(degree, timeout=LIMIT)
        self.slots: list[Tensor | None] = [None] * degree


@dataclass
class ThreadGroup:
    meeting: Meeting
    index: int
    calls: list[tuple[str, int]] = field(default_factory=list)  # kind and bytes of the tensor handed in

    @property
    def degree(self) -> int:
        return self.meeting.degree

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        self.calls.append(("all-gather", tensor.numel() * tensor.element_size()))
        return self._exchange(tensor)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self.calls.append(("all-reduce", tensor.numel() * tensor.element_size()))
        return torch.stack(self._exchange(tensor)).sum(0)

    def _exchange(self, tensor: Tensor) -> list[Tensor]:
        self.meeting.slots[self.index] = tensor.detach().clone()
        self.meeting.barrier.wait()
        found = [slot for slot in self.meeting.slots if slot is not None]
        self.meeting.barrier.wait()
        assert len({tuple(part.shape) for part in found}) == 1, f"parts of shapes {[p.shape for p in found]}"
        return found


@dataclass
class Device:
    """What one device has after a forward and a backward."""

    outcome: Outcome
    calls: list[tuple[str, int]]
    codes: list[StageCode]
    kept: dict[str, Tensor] = field(default_factory=dict)


def run_shared(
    model: Model, batch: Any, split: Mapping[str, int], degree: int, *, boundaries: Sequence[int] = (), seed: int = 0
) -> list[Device]:
    """One step of every device of a group; of parameters that are split, gradients and buffers come out whole."""
    meeting, found = Meeting(degree), [None] * degree
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            found[index] = _run(model, batch, split, ThreadGroup(meeting, index), boundaries, seed)
        except threading.BrokenBarrierError as error:
            errors.append(error)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.insert(0, error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(degree)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    if errors:
        raise errors[0]
    assert all(device is not None for device in found), "a device hangs"
    return found  # type: ignore[return-value]


def run_alone(model: Model, batch: Any, *, seed: int = 0) -> Outcome:
    """The same step on one device."""
    return _run(model, batch, {}, None, (), seed).outcome


def _run(
    model: Model, batch: Any, split: Mapping[str, int], group: ThreadGroup | None, boundaries: Sequence[int], seed: int
) -> Device:
    codes = [
        build_stage(model, part, share=None if group is None else TensorShare(split, group))
        for part in cut(model.graph, boundaries)
    ]
    for code in codes:
        _own_tensors(code)
        if group is not None:
            take_parts(code, group)
    rows, inputs = batch_rows(batch), named_inputs(model.captured, batch)
    made: dict[str, Tensor] = {}
    leaves: list[tuple[StageCode, dict[str, Tensor], tuple[Tensor, ...]]] = []
    for code in codes:
        code.randomness.seed = seed
        received = {v.name: made[v.name].detach().requires_grad_(v.requires_grad) for v in code.cut.receives}
        results = code.module(rows, *(inputs.tensors[name] for name in code.inputs), *received.values())
        made |= {value.name: tensor for value, tensor in zip(code.cut.sends, results, strict=False)}
        leaves.append((code, received, results))
    gradients: dict[str, Tensor] = {}
    for code, received, results in reversed(leaves):
        pairs = [(t, gradients[v.name]) for v, t in zip(code.cut.sends, results, strict=False) if v.name in gradients]
        pairs += [(results[-1], torch.ones_like(results[-1]))] if code.cut.has_loss else []
        torch.autograd.backward([t for t, _ in pairs if t.requires_grad], [g for t, g in pairs if t.requires_grad])
        for name, leaf in received.items():
            if leaf.grad is not None:
                gradients[name] = gradients[name] + leaf.grad if name in gradients else leaf.grad
    calls = [] if group is None else list(group.calls)
    return Device(_outcome(leaves[-1][2][-1].detach(), codes, group), calls, codes)


def _outcome(loss: Tensor, codes: Sequence[StageCode], group: ThreadGroup | None) -> Outcome:
    gradients: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for code in codes:
        for name, parameter in code.named_parameters().items():
            if parameter.grad is not None:
                whole = _whole(parameter.grad, name, code, group)
                gradients[name] = gradients[name] + whole if name in gradients else whole
        for name, buffer in code.named_buffers().items():
            buffers[name] = _whole(buffer, name, code, group)
    return Outcome(loss, gradients, buffers)


def _whole(tensor: Tensor, name: str, code: StageCode, group: ThreadGroup | None) -> Tensor:
    part = code.parts.get(name)
    return tensor if part is None or group is None else gather(group, tensor, part.dim, part.cells, part.unit)


def _own_tensors(code: StageCode) -> None:
    """Copies of the model's parameters and buffers, so that devices do not share them."""
    copies: dict[int, Tensor] = {}
    for module in code.modules:
        _copy_tensors(module, copies)


def _copy_tensors(module: fx.GraphModule, copies: dict[int, Tensor]) -> None:
    for path, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        folder, _, name = path.rpartition(".")
        own = copies.setdefault(id(tensor), copy.deepcopy(tensor))
        if isinstance(own, nn.Parameter):
            own.grad = None
        setattr(module.get_submodule(folder), name, own)
