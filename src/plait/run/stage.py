"""One stage on one rank while a step runs: its micro-batches in flight, forward and backward."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plait.graph import Value
from plait.graph.stage import StageCode


@dataclass
class InFlight:
    """A micro-batch between its forward and the end of its backward."""

    rows: tuple[int, int]
    received: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    loss: Tensor | None = None
    output_gradients: dict[str, Tensor] = field(default_factory=dict)


class StageRun:
    """Runs a stage's code. Rows are numbered within the micro-batch; `micro.rows` are those this rank has."""

    def __init__(self, code: StageCode, device: torch.device) -> None:
        self.code = code
        self.device = device
        self.values = {value.name: value for value in (*code.cut.receives, *code.cut.sends)}

    def buffer(self, name: str, rows: int) -> Tensor:
        """Memory for a received value or gradient."""
        value = self.values[name]
        shape = list(value.shape)
        if value.batch_dim is not None:
            shape[value.batch_dim] *= rows
        order = value.order or range(len(shape))
        lying = torch.empty([shape[dim] for dim in order], dtype=getattr(torch, value.dtype), device=self.device)
        return from_memory(value, lying)

    def forward(
        self, micro: InFlight, inputs: Mapping[str, Tensor], whole: Mapping[str, Tensor] | None, num_rows: int
    ) -> None:
        """`whole` are the inputs of all rows of the micro-batch, where the stage counts its targets over them."""
        leaves = []
        for value in self.code.cut.receives:
            tensor = micro.received[value.name]
            if value.requires_grad:
                tensor.requires_grad_()
            leaves.append(tensor)
        rows = micro.rows[1] - micro.rows[0]
        extra: list[object] = []
        if self.code.count_targets is not None and whole is not None:
            totals = self.code.count_targets(num_rows, *[whole[name] for name in self.code.inputs])
            extra = [rows / num_rows, *totals]
        results = self.code.module(rows, *[inputs[name] for name in self.code.inputs], *leaves, *extra)
        if self.code.cut.has_loss:
            micro.loss = results[-1]
        micro.outputs = {v.name: t for v, t in zip(self.code.cut.sends, results, strict=False)}

    def backward(self, micro: InFlight, loss_weight: float) -> None:
        """Adds to the parameters' gradients and leaves the inputs' gradients on `micro.received`."""
        tensors: list[Tensor] = []
        gradients: list[Tensor] = []
        for name, output in micro.outputs.items():
            if output.requires_grad and name in micro.output_gradients:
                tensors.append(output)
                gradients.append(micro.output_gradients[name])
        if micro.loss is not None:
            tensors.append(micro.loss)
            gradients.append(torch.full_like(micro.loss, loss_weight))
        torch.autograd.backward(tensors, gradients)
        micro.outputs, micro.output_gradients, micro.loss = {}, {}, None

    def output_rows(self, micro: InFlight, name: str, first: int, last: int) -> Tensor:
        """These rows of a value this stage made, ready to be sent."""
        return rows_of(self.values[name], micro.outputs[name].detach(), micro.rows[0], first, last)

    def input_gradient_rows(self, micro: InFlight, name: str, first: int, last: int) -> Tensor:
        """These rows of the gradient of a value this stage received; zeros where the loss ignores it."""
        leaf = micro.received[name]
        gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
        return rows_of(self.values[name], gradient, micro.rows[0], first, last)


def rows_of(value: Value, tensor: Tensor, offset: int, first: int, last: int) -> Tensor:
    """Rows `first..last-1` of a tensor whose first row is `offset`, as they are sent; a value without rows whole."""
    if value.batch_dim is not None:
        size = value.shape[value.batch_dim]
        tensor = tensor.narrow(value.batch_dim, (first - offset) * size, (last - first) * size)
    return in_memory(value, tensor).contiguous()


def in_memory(value: Value, tensor: Tensor) -> Tensor:
    """The tensor with its dimensions as they lie in memory, which is what is sent."""
    return tensor.permute(value.order) if value.order else tensor


def from_memory(value: Value, tensor: Tensor) -> Tensor:
    """The other way round."""
    return tensor.permute([value.order.index(dim) for dim in range(tensor.dim())]) if value.order else tensor


def put_rows(value: Value, whole: Tensor, part: Tensor, offset: int, first: int, last: int) -> None:
    """Adds a part to the rows of `whole` it belongs to."""
    if value.batch_dim is None:
        whole += part
        return
    size = value.shape[value.batch_dim]
    whole.narrow(value.batch_dim, (first - offset) * size, (last - first) * size).add_(part)
