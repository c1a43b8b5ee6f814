"""Stages and buckets that compute nothing: they take their time, and their messages have their size.

[Note: queue] A device works through a queue that its host fills ahead of it. So a computation that the executor comes
to within half a millisecond of the end of the one before begins at that end, as it would on a device: Python's time
between two instructions is hidden, and being late once does not add up.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from plait.emulate.dilation import shrunk
from plait.emulate.exchanges import Exchange
from plait.emulate.sleep import sleep_until
from plait.emulate.task import StageSeconds
from plait.graph import Value
from plait.plan.rows import Span
from plait.program import Bucket, Program
from plait.run.backend import NOTHING, Calls, MicroBatch
from plait.run.stage import InFlight

_QUEUED = 5e-4


class Device:
    """The clock of one rank. `lateness` has by how much each computation outlasted its time."""

    def __init__(self) -> None:
        self.lateness: list[float] = []
        self._free = 0.0

    def work(self, seconds: float) -> None:
        if seconds <= 0.0:
            return
        now = time.perf_counter()
        begun = self._free if now - self._free < _QUEUED else now
        self._free = begun + seconds
        self.lateness.append(sleep_until(self._free))


class TimedStage:
    """Takes a stage's seconds. `meet` is where its replicas wait for one another, if they compute together; `exchange`
    does what a tensor group exchanges inside a computation.

    Gradients are final in the backward, or in its rest where the schedule puts that off.
    """

    def __init__(
        self,
        device: Device,
        seconds: Mapping[int, StageSeconds],
        values: Mapping[str, Value],
        sends: Sequence[str],
        payload: float,
        meet: Callable[[], None] = lambda: None,
        *,
        puts_off: bool = False,
        exchange: Callable[[Exchange], None] = lambda exchange: None,
    ) -> None:
        self._device = device
        self._seconds = seconds  # by rows
        self._values = values
        self._sends = sends
        self._payload = payload
        self._meet = meet
        self._puts_off = puts_off
        self._exchange = exchange
        self._nothing = torch.zeros(1)

    def forward(
        self, micro: InFlight, batch: MicroBatch, before_use: Calls = NOTHING, when_made: Calls = NOTHING
    ) -> None:
        del batch
        self._meet()
        seconds = self._of(micro)
        micro.outputs = dict.fromkeys(self._sends, self._nothing)
        calls = [(seconds.used[name], call) for name, call in before_use.items()]
        calls += [(seconds.made[name], call) for name, call in when_made.items()]
        self._work(seconds.forward, [*calls, *self._exchanged(seconds.forward_exchanges)])

    def backward(self, micro: InFlight, loss_weight: float, when_final: Calls = NOTHING) -> None:
        del loss_weight
        self._meet()
        seconds = self._of(micro)
        if self._puts_off:
            self._work(seconds.backward, self._exchanged(seconds.backward_exchanges))
        else:
            calls = [*self._final(seconds, when_final), *self._exchanged(seconds.backward_exchanges)]
            self._work(seconds.backward + seconds.weight, calls)
        micro.outputs, micro.received, micro.output_gradients = {}, {}, {}

    def add_weight_gradients(self, micro: InFlight, when_final: Calls = NOTHING) -> None:
        seconds = self._of(micro)
        if self._puts_off:
            self._work(seconds.weight, self._final(seconds, when_final))

    def _final(self, seconds: StageSeconds, calls: Calls) -> list[tuple[float, Callable[[], None]]]:
        return [(seconds.final[name], call) for name, call in calls.items()]

    def _exchanged(self, exchanges: Sequence[Exchange]) -> list[tuple[float, Callable[[], None]]]:
        return [(exchange.after, partial(self._exchange, exchange)) for exchange in exchanges]

    def _work(self, seconds: float, calls: Sequence[tuple[float, Callable[[], None]]]) -> None:
        """Keeps the device busy for so long, with what happens in between."""
        done = 0.0
        for at, call in sorted(calls, key=lambda pair: pair[0]):
            at = min(at, seconds)
            self._device.work(at - done)
            done = at
            call()
        self._device.work(seconds - done)

    def buffer(self, name: str, rows: int) -> Tensor:
        return torch.empty(shrunk(self._values[name].num_bytes(rows), self._payload), dtype=torch.uint8)

    def joined(self, name: str, messages: Sequence[tuple[Span, Tensor]], rows: Span) -> Tensor:
        del name, rows
        return messages[0][1]

    def output_rows(self, micro: InFlight, name: str, first: int, last: int) -> Tensor:
        del micro
        return self.buffer(name, last - first)

    def input_gradient_rows(self, micro: InFlight, name: str, first: int, last: int) -> Tensor:
        del micro
        return self.buffer(name, last - first)

    def _of(self, micro: InFlight) -> StageSeconds:
        return self._seconds[micro.rows[1] - micro.rows[0]]


class TimedBucket:
    """Gradients that are really summed, whatever they are, and an optimiser that takes its time."""

    def __init__(self, device: Device, bucket: Bucket, seconds: float, payload: float) -> None:
        self.bucket = bucket
        self.flat = torch.zeros(max(1, shrunk(bucket.num_bytes, payload) // 4))
        self._device = device
        self._seconds = seconds

    def clear(self) -> None:
        return None

    def step(self) -> None:
        self._device.work(self._seconds)

    def squared_norm(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64)

    def scale(self, factor: float) -> None:
        del factor


def stage_values(program: Program, stage: int) -> tuple[dict[str, Value], list[str]]:
    """The values a stage receives or makes for others, by name, and the names of those it makes."""
    values = {e.value.name: e.value for e in program.edges if stage in (e.producer, *e.consumers)}
    return values, [e.value.name for e in program.edges if e.producer == stage]
