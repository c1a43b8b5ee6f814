"""One stage on one rank while a step runs: its micro-batches in flight, forward and backward."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from plait.graph import Value
from plait.graph.deferred import PutOff, run_deferred
from plait.graph.stage import StageCode
from plait.graph.writer import WEIGHT_GRADIENTS
from plait.plan.rows import Span
from plait.run.backend import NOTHING, Calls, MicroBatch
from plait.run.final import Countdown, told_of_each


@dataclass
class InFlight:
    """A micro-batch between its forward and the end of its backward.

    `passed_on` are gradients of received values that other stages of the rank took from this one.
    """

    rows: Span
    batch: MicroBatch | None = None  # kept by its forward
    received: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    loss: Tensor | None = None
    output_gradients: dict[str, Tensor] = field(default_factory=dict)
    passed_on: dict[str, Tensor] = field(default_factory=dict)
    input_gradients: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)  # as they were before a forward to be done again
    weight_gradients: list[PutOff] = field(default_factory=list)

    def value(self, name: str) -> Tensor:
        """A value that this stage made or has received."""
        return self.outputs[name] if name in self.outputs else self.received[name]

    def add_gradient(self, name: str, gradient: Tensor) -> None:
        """The gradient of `value(name)` that another stage of this rank gives back."""
        gradients = self.output_gradients if name in self.outputs else self.passed_on
        gradients[name] = gradients[name] + gradient if name in gradients else gradient


class StageRun:
    """Runs a stage's code. Rows are numbered within the micro-batch; `micro.rows` are those this rank has.

    With `recompute` a forward keeps nothing but what it received, and the backward begins with a forward. What that
    writes (`written`: BatchNorm statistics, say) it writes into copies of what the first forward found.
    `buckets` has the names of the parameters of each bucket.
    """

    def __init__(
        self,
        code: StageCode,
        device: torch.device,
        *,
        recompute: bool = False,
        written: Set[str] = frozenset(),
        buckets: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.code = code
        self._puts_off = any(node.target == WEIGHT_GRADIENTS for node in code.module.graph.find_nodes(op="get_attr"))
        parameters = code.named_parameters()
        self.buckets = {
            bucket: {name: parameters[name] for name in names if name in parameters}
            for bucket, names in (buckets or {}).items()
        }
        self.device = device
        self.recompute = recompute
        self.written = written
        self.values = {value.name: value for value in (*code.cut.receives, *code.cut.sends)}

    def buffer(self, name: str, rows: int) -> Tensor:
        """Memory for a received value or gradient."""
        value = self.values[name]
        shape = list(value.shape)
        if value.batch_dim is not None:
            shape[value.batch_dim] *= rows
        order = value.order or range(len(shape))
        return torch.empty([shape[dim] for dim in order], dtype=getattr(torch, value.dtype), device=self.device)

    def joined(self, name: str, messages: Sequence[tuple[Span, Tensor]], rows: Span) -> Tensor:
        value = self.values[name]
        if len(messages) == 1 and messages[0][0] == rows:
            return from_memory(value, messages[0][1])
        whole = self._zeros(name, rows)
        for (first, last), message in messages:
            put_rows(value, whole, from_memory(value, message), rows[0], first, last)
        return whole

    def _zeros(self, name: str, rows: Span) -> Tensor:
        return from_memory(self.values[name], self.buffer(name, rows[1] - rows[0]).zero_())

    def forward(
        self, micro: InFlight, batch: MicroBatch, before_use: Calls = NOTHING, when_made: Calls = NOTHING
    ) -> None:
        micro.batch = batch
        with self._watched(micro, before_use, when_made):
            if not self.recompute:
                self._run(micro, batch)
                return
            micro.buffers = {name: self.code.module.get_buffer(name).clone() for name in self.written}
            with torch.no_grad():
                self._run(micro, batch)

    @contextmanager
    def _watched(self, micro: InFlight, before_use: Calls, when_made: Calls) -> Iterator[None]:
        """Calls forget themselves: `before_use` then no longer has them. Those of unread parameters come in the end."""
        watch = self.code.watch
        if watch is None or not (before_use or when_made):
            for call in list(before_use.values()):
                call()
            yield
            return

        def use(bucket: str) -> None:
            if bucket in before_use:
                before_use[bucket]()

        def keep(name: str, value: Tensor) -> None:
            micro.outputs[name] = value
            when_made[name]()

        watch.reads = {name: partial(use, bucket) for bucket in before_use for name in self.buckets[bucket]}
        watch.values = {name: partial(keep, name) for name in when_made}
        try:
            yield
        finally:
            watch.reads, watch.values = {}, {}
        for call in list(before_use.values()):
            call()

    def _forward_again(self, micro: InFlight) -> None:
        """Makes what the forward has not kept."""
        assert micro.batch is not None
        with _in_place_of(self.code.module, micro.buffers):
            self._run(micro, micro.batch)
        micro.buffers = {}

    def _run(self, micro: InFlight, batch: MicroBatch) -> None:
        self._start_random_numbers(micro, batch)
        leaves = []
        for value in self.code.cut.receives:
            tensor = micro.received[value.name]
            if value.requires_grad:
                tensor.requires_grad_()
            leaves.append(tensor)
        rows = micro.rows[1] - micro.rows[0]
        extra: list[object] = []
        if self.code.count_targets is not None:
            whole = batch.inputs.rows(self.code.inputs, batch.offset, batch.offset + batch.num_rows)
            extra = [rows / batch.num_rows, *self.code.count_targets(batch.num_rows, *whole.values())]
        own = batch.inputs.rows(self.code.inputs, batch.offset + micro.rows[0], batch.offset + micro.rows[1])
        results = self.code.module(rows, *own.values(), *leaves, *extra)
        if self.code.cut.has_loss:
            micro.loss = results[-1]
        micro.outputs = {v.name: t for v, t in zip(self.code.cut.sends, results, strict=False)}

    def _start_random_numbers(self, micro: InFlight, batch: MicroBatch) -> None:
        """A forward's random numbers begin anew with it, so that the second is the same as the first."""
        randomness = self.code.randomness
        randomness.seed, randomness.step = batch.inputs.seed, batch.inputs.step
        randomness.micro_batch, randomness.row_offset = batch.index, micro.rows[0]

    def backward(self, micro: InFlight, loss_weight: float, when_final: Calls = NOTHING) -> None:
        """Leaves the gradients of what was received, and adds to the parameters' those that are not put off.

        Where none are put off in this stage, gradients are final when autograd has added to them.
        """
        if self.recompute:
            self._forward_again(micro)
        tensors: list[Tensor] = []
        gradients: list[Tensor] = []
        for name, output in micro.outputs.items():
            if output.requires_grad and name in micro.output_gradients:
                tensors.append(output)
                gradients.append(micro.output_gradients[name])
        if micro.loss is not None:
            tensors.append(micro.loss)
            gradients.append(torch.full_like(micro.loss, loss_weight))
        with told_of_each(self._awaited(when_final), when_final):
            torch.autograd.backward(tensors, gradients)
        micro.weight_gradients = self.code.weight_gradients.take()
        micro.outputs, micro.output_gradients, micro.loss = {}, {}, None
        found = {name: leaf.grad for name, leaf in micro.received.items()}
        micro.received = {}
        micro.input_gradients = {name: gradient for name, gradient in found.items() if gradient is not None}
        for name, gradient in micro.passed_on.items():
            own = micro.input_gradients.get(name)
            micro.input_gradients[name] = gradient if own is None else own + gradient
        micro.passed_on = {}

    def _awaited(self, when_final: Calls) -> dict[str, list[nn.Parameter]]:
        """The parameters of the buckets somebody asks for, if autograd alone adds to their gradients."""
        return {} if self._puts_off else {bucket: list(self.buckets[bucket].values()) for bucket in when_final}

    def add_weight_gradients(self, micro: InFlight, when_final: Calls = NOTHING) -> None:
        """The rest of the backward. A bucket is final when nothing that is put off adds to it any more."""
        if not when_final:
            run_deferred(micro.weight_gradients)
            return
        waiting = micro.weight_gradients
        count = Counter(id(parameter) for later in waiting for parameter in later.parameters)
        left = Countdown(
            {bucket: sum(count[id(p)] for p in self.buckets[bucket].values()) for bucket in when_final}, when_final
        )
        bucket_of = {id(p): bucket for bucket in when_final for p in self.buckets[bucket].values()}

        def done(later: PutOff) -> None:
            for parameter in later.parameters:
                left.less(bucket_of.get(id(parameter)))

        run_deferred(waiting, done)

    def output_rows(self, micro: InFlight, name: str, first: int, last: int) -> Tensor:
        """These rows of a value this stage made, ready to be sent."""
        return rows_of(self.values[name], micro.outputs[name].detach(), micro.rows[0], first, last)

    def input_gradient_rows(self, micro: InFlight, name: str, first: int, last: int) -> Tensor:
        """These rows of the gradient of a value this stage received; zeros where the loss ignores it."""
        gradient = micro.input_gradients.get(name)
        if gradient is None:
            gradient = self._zeros(name, micro.rows)
        return rows_of(self.values[name], gradient, micro.rows[0], first, last)


@contextmanager
def _in_place_of(module: nn.Module, buffers: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the module has these buffers instead of its own."""
    own = {name: module.get_buffer(name) for name in buffers}
    _put(module, buffers)
    try:
        yield
    finally:
        _put(module, own)


def _put(module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    for name, buffer in buffers.items():
        holder, _, own_name = name.rpartition(".")
        setattr(module.get_submodule(holder), own_name, buffer)


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
