"""The executor: one rank's instructions, read with torch.distributed.

Every instruction is one method. Whatever waits does so through `_wait`, so that a failure says which rank,
stage and micro-batch it met and what was being waited for. What happens inside a computation is handed to the stage,
which calls it when its time has come; what the stage cannot time is done right behind it.

[Note: under way] Sums that a program does not await go on between steps. The next step awaits and uses them, sooner
than it must where the rank would wait for others; `finish` does so when there is no next step.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from plait.graph import Value
from plait.program import Instruction, Op, Program
from plait.run.backend import Calls, Gradients, MicroBatch, Stage, StepInputs
from plait.run.clock import Clock, HostClock, Moment
from plait.run.errors import RankFailure, is_lost_peer
from plait.run.inside import in_order, make_the_rest, once
from plait.run.stage import InFlight
from plait.run.summing import Summing
from plait.run.transport import Pending, Transport
from plait.simulate import Span

_GLANCE, _GLANCING = 5e-5, 1.0  # seconds between looks for sums that have come, and after which a rank just waits


@dataclass
class StepResult:
    """What a step gave; its `spans` are worked out when asked for, for which a GPU must have come to its end."""

    loss: float = 0.0
    gradient_norm: float | None = None
    rank: int = 0
    clock: Clock = field(default_factory=HostClock)
    records: list[tuple[str, Instruction, Moment, Moment]] = field(default_factory=list)

    @cached_property
    def spans(self) -> list[Span]:
        seconds = self.clock.seconds([moment for record in self.records for moment in record[2:]])
        return [
            Span(self.rank, lane, what, start, end)
            for (lane, what, _, _), start, end in zip(self.records, seconds[::2], seconds[1::2], strict=True)
        ]


@dataclass
class _Arriving:
    """A posted receive: the rows go straight into `buffer`."""

    instruction: Instruction
    buffer: Tensor
    pending: Pending


class Executor:
    """Runs programs on one rank. State between steps is in the stages and buckets alone."""

    def __init__(
        self,
        transport: Transport,
        stages: Mapping[int, Stage],
        buckets: Mapping[str, Gradients],
        summing: Summing,
        *,
        clip_norm: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.transport = transport
        self.clock = clock or HostClock()
        self.rank = transport.rank
        self.stages = stages
        self.buckets = buckets
        self.summing = summing
        self.clip_norm = clip_norm
        self.at: tuple[int, Instruction | None] = (0, None)  # step and instruction, written for the control thread
        self.under_way: dict[str, tuple[Pending, Moment]] = {}  # sums by bucket, in the order of their use

    @property
    def position(self) -> str:
        """Where this rank is, in words."""
        step, ins = self.at
        if ins is None:
            return f"before step {step}"
        if ins.stage < 0:
            return f"in step {step} at {ins}"
        return f"in step {step}, stage {ins.stage}, micro-batch {ins.micro_batch} ({ins})"

    def run(self, program: Program, inputs: StepInputs) -> StepResult:
        """One step."""
        return _Step(self, program, inputs).run()

    def finish(self) -> None:
        """Awaits and uses the sums that the last step left under way."""
        for name in list(self.under_way):
            pending, _ = self.under_way.pop(name)
            self.wait(pending, Instruction(Op.AWAIT, name=name))
            self.buckets[name].step()

    def wait(self, pending: Pending, ins: Instruction) -> None:
        try:
            pending.wait()
        except RuntimeError as error:
            why = f"waited for {ins} in vain: {str(error).splitlines()[0][:200]}"
            raise RankFailure(self.rank, self.position, why, lost_peer=True) from error


class _Step:
    def __init__(self, executor: Executor, program: Program, inputs: StepInputs) -> None:
        self.executor = executor
        self.transport = executor.transport
        self.rank = executor.rank
        self.program = program
        self.inputs = inputs
        self.first_row = [0]
        for size in program.micro_batch_rows:
            self.first_row.append(self.first_row[-1] + size)
        self.flying: dict[tuple[int, int], InFlight] = {}
        self.arriving: dict[tuple[int, int, bool], list[_Arriving]] = {}
        self.sending: dict[tuple[int, int, bool], list[Pending]] = {}
        self.inside: list[Instruction] = []  # the computation to come
        self.begun: Moment = None  # the part of a computation that is being done
        self.summed: set[str] = set()  # buckets whose sums are there, not yet used
        self.sums_begun: set[str] = set()  # in this step
        self.awaited = [ins.name for ins in program.ranks[executor.rank] if ins.op is Op.AWAIT]  # as they are needed
        self.takes: dict[int, list[tuple[Value, int]]] = {}  # by stage: what it takes from which other one here
        self.gives: dict[int, list[tuple[Value, int]]] = {}  # and what it gives to which
        for value, source, sink in program.hand_overs:
            self.takes.setdefault(sink, []).append((value, source))
            self.gives.setdefault(source, []).append((value, sink))
        self.losses: list[Tensor] = []  # kept on the device until the end: reading one would make it wait
        self.clock = executor.clock
        self.start = self.clock.now()
        self.result = StepResult(rank=executor.rank, clock=executor.clock)

    def run(self) -> StepResult:
        self.actions: Mapping[Op, Callable[[Instruction], None]] = {
            Op.F: self._forward,
            Op.B: self._backward,
            Op.I: self._backward,
            Op.W: self._add_weight_gradients,
            Op.SEND: self._send,
            Op.RECV: self._receive,
            Op.FREE: self._free,
            Op.REDUCE: self._reduce,
            Op.REDUCE_TIED: self._reduce,
            Op.AWAIT: self._await,
            Op.CLIP: self._clip,
            Op.STEP: self._update,
            Op.LOSS: self._share_loss,
        }
        for name, bucket in self.executor.buckets.items():
            if name not in self.executor.under_way:
                bucket.clear()
        for instruction in self.program.ranks[self.rank]:
            if instruction.inside:
                self.inside.append(instruction)
                continue
            self.executor.at = (self.inputs.step, instruction)
            try:
                self.actions[instruction.op](instruction)
            except RankFailure:
                self.executor.under_way.clear()  # they may never come
                raise
            except Exception as error:
                self.executor.under_way.clear()  # they may never come
                raise RankFailure(
                    self.rank, self.executor.position, f"{type(error).__name__}: {error}", lost_peer=is_lost_peer(error)
                ) from error
        for name, (_, since) in self.executor.under_way.items():
            self._record("reduce", Instruction(Op.REDUCE, name=name), since)
        self.executor.at = (self.inputs.step + 1, None)
        return self.result

    # Computation

    def _forward(self, ins: Instruction) -> None:
        stage = self.executor.stages[ins.stage]
        micro = self._in_flight(ins)
        inside = self._taken_inside()
        self._use_what_is_there([what.name for what in inside if what.op is Op.AWAIT])
        self._collect(ins, False)
        for value, source in self.takes.get(ins.stage, ()):
            micro.received[value.name] = self.flying[source, ins.micro_batch].value(value.name).detach()
        before_use = once(self._calls(ins, [what for what in inside if what.op in (Op.AWAIT, Op.STEP)]))
        # Peers expect messages, and below sums, in the order of the program.
        when_made = in_order(self._calls(ins, [what for what in inside if what.op is Op.SEND]))
        self.begun = self.clock.now()
        stage.forward(micro, self._micro_batch(ins), before_use, when_made)
        if micro.loss is not None and self.program.stages[ins.stage].group(self.rank)[0] == self.rank:
            self.losses.append(micro.loss.detach().double() * (ins.rows / self.program.batch_rows))
        self._computed(ins, when_made)

    def _taken_inside(self) -> list[Instruction]:
        inside, self.inside = self.inside, []
        return inside

    def _calls(self, computation: Instruction, inside: Sequence[Instruction]) -> dict[str, Callable[[], None]]:
        """By bucket or value, what to do in the middle of a computation."""
        by_name: dict[str, list[Instruction]] = {}
        for what in inside:
            by_name.setdefault(what.name, []).append(what)

        def do(all_of_it: Sequence[Instruction]) -> None:
            self._record("compute", computation, self.begun)
            for what in all_of_it:
                self.actions[what.op](what)
            self.begun = self.clock.now()

        return {name: partial(do, all_of_it) for name, all_of_it in by_name.items()}

    def _computed(self, ins: Instruction, left: Calls) -> None:
        """A computation is done; what the stage could not tell when to do is done now."""
        self._record("compute", ins, self.begun)
        self.begun = self.clock.now()
        make_the_rest(left)

    def _micro_batch(self, ins: Instruction) -> MicroBatch:
        index = ins.micro_batch
        return MicroBatch(self.inputs, index, self.first_row[index], self.program.micro_batch_rows[index])

    def _backward(self, ins: Instruction) -> None:
        stage, micro = self.executor.stages[ins.stage], self.flying[ins.stage, ins.micro_batch]
        self._collect(ins, True)
        for value, sink in self.gives.get(ins.stage, ()):
            gradient = self.flying[sink, ins.micro_batch].input_gradients.pop(value.name, None)
            if gradient is not None:
                micro.add_gradient(value.name, gradient)
        when_final = in_order(self._calls(ins, self._taken_inside()))
        self.begun = self.clock.now()
        stage.backward(micro, ins.rows / self.program.batch_rows, when_final)
        if ins.op is Op.B:
            stage.add_weight_gradients(micro, when_final)
        self._computed(ins, when_final)

    def _add_weight_gradients(self, ins: Instruction) -> None:
        when_final = in_order(self._calls(ins, self._taken_inside()))
        self.begun = self.clock.now()
        micro = self.flying[ins.stage, ins.micro_batch]
        self.executor.stages[ins.stage].add_weight_gradients(micro, when_final)
        self._computed(ins, when_final)

    def _in_flight(self, ins: Instruction) -> InFlight:
        """The micro-batch on this stage; receives may have made it before its forward comes."""
        key = (ins.stage, ins.micro_batch)
        if key not in self.flying:
            stage = self.program.stages[ins.stage]
            self.flying[key] = InFlight(stage.rows[ins.micro_batch][stage.ranks.index(self.rank)])
        return self.flying[key]

    # Messages

    def _send(self, ins: Instruction) -> None:
        stage, micro = self.executor.stages[ins.stage], self.flying[ins.stage, ins.micro_batch]
        rows = stage.input_gradient_rows if ins.gradient else stage.output_rows
        tensor = rows(micro, ins.name, ins.first_row, ins.last_row)
        now = self.clock.now()
        self.sending.setdefault((ins.stage, ins.micro_batch, ins.gradient), []).append(
            self.transport.send(tensor, ins.peer)
        )
        self.result.records.append(("send", ins, now, now))

    def _receive(self, ins: Instruction) -> None:
        stage = self.executor.stages[ins.stage]
        self._in_flight(ins)
        buffer = stage.buffer(ins.name, ins.rows)
        pending = self.transport.receive(buffer, ins.peer)
        key = (ins.stage, ins.micro_batch, ins.gradient)
        self.arriving.setdefault(key, []).append(_Arriving(ins, buffer, pending))

    def _collect(self, ins: Instruction, gradient: bool) -> None:
        """Waits for what `ins` needs and puts the rows together."""
        parts = self.arriving.pop((ins.stage, ins.micro_batch, gradient), [])
        if not parts:
            return
        start = self.clock.now()
        for part in parts:
            self._wait(part.pending, part.instruction)
        self._record("wait", ins, start)
        micro = self.flying[ins.stage, ins.micro_batch]
        target = micro.output_gradients if gradient else micro.received
        stage = self.executor.stages[ins.stage]
        by_name: dict[str, list[_Arriving]] = {}
        for part in parts:
            by_name.setdefault(part.instruction.name, []).append(part)
        for name, pieces in by_name.items():
            messages = [((piece.instruction.first_row, piece.instruction.last_row), piece.buffer) for piece in pieces]
            target[name] = stage.joined(name, messages, micro.rows)

    def _free(self, ins: Instruction) -> None:
        for pending in self.sending.pop((ins.stage, ins.micro_batch, ins.gradient), []):
            self._wait(pending, ins)
        if ins.gradient:
            own = {value.name for value, _ in self.takes.get(ins.stage, ())}
            micro = self.flying[ins.stage, ins.micro_batch]
            micro.input_gradients = {name: g for name, g in micro.input_gradients.items() if name in own}

    # Gradients

    def _reduce(self, ins: Instruction) -> None:
        bucket = self.executor.buckets[ins.name]
        pending = self.executor.summing.start(self.transport, bucket.flat, bucket.bucket.ranks)
        self.executor.under_way[ins.name] = pending, self.clock.now()
        self.sums_begun.add(ins.name)

    def _await(self, ins: Instruction) -> None:
        """There is nothing to await in the first of all steps, or where a sum of the step before is used already."""
        if ins.name not in self.executor.under_way:
            return
        if ins.name not in self.sums_begun:
            self._use_others_meanwhile(ins.name)
        pending, since = self.executor.under_way.pop(ins.name)
        start = self.clock.now()
        self._wait(pending, ins)
        self._record("wait", ins, start)
        self._record("reduce", ins, since if ins.name in self.sums_begun else self.start)
        self.summed.add(ins.name)

    def _use_others_meanwhile(self, name: str) -> None:
        """Until a sum of the step before is there, those that are there are used; a GPU waits without its host."""
        if not isinstance(self.clock, HostClock):
            return
        limit = time.monotonic() + _GLANCING
        pending, _ = self.executor.under_way[name]
        others = [other for other in self.awaited if other != name and other not in self.sums_begun]
        while not pending.done() and time.monotonic() < limit:
            there = [o for o in others if o in self.executor.under_way and self.executor.under_way[o][0].done()]
            if not there:
                if not any(other in self.executor.under_way for other in others):
                    return
                time.sleep(_GLANCE)
            for other in there[:1]:
                self._await(Instruction(Op.AWAIT, name=other))
                self._update(Instruction(Op.STEP, name=other))

    def _use_what_is_there(self, names: Sequence[str]) -> None:
        """Sums that have come are used as long as nobody waits for this rank."""
        for name in names:
            if name in self.executor.under_way and self.executor.under_way[name][0].done():
                self._await(Instruction(Op.AWAIT, name=name))
                self._update(Instruction(Op.STEP, name=name))

    def _clip(self, ins: Instruction) -> None:
        """Scales all gradients to the true global norm; each parameter is counted on one rank only."""
        assert self.executor.clip_norm is not None
        own = [b for b in self.executor.buckets.values() if b.bucket.ranks[0] == self.rank]
        squared = (
            torch.stack([b.squared_norm().cpu() for b in own]).sum() if own else torch.zeros((), dtype=torch.float64)
        )
        norm = float(self._meet(squared, ins).sqrt())
        scale = self.executor.clip_norm / (norm + 1e-6)
        if scale < 1.0:
            for bucket in self.executor.buckets.values():
                bucket.scale(scale)
        self.result.gradient_norm = norm

    def _update(self, ins: Instruction) -> None:
        bucket = self.executor.buckets[ins.name]
        if len(bucket.bucket.ranks) > 1:
            if ins.name not in self.summed:
                return
            self.summed.remove(ins.name)
        start = self.clock.now()
        bucket.step()
        if ins.name not in self.sums_begun and len(bucket.bucket.ranks) > 1:
            bucket.clear()  # for the gradients of this step
        self._record("compute", ins, start)

    def _share_loss(self, ins: Instruction) -> None:
        own = torch.stack(self.losses).sum().cpu() if self.losses else torch.zeros((), dtype=torch.float64)
        self.result.loss = float(self._meet(own, ins))

    def _meet(self, number: Tensor, ins: Instruction) -> Tensor:
        """The sum of a number over all ranks. Until the last of them has come, sums are used that have."""
        start = self.clock.now()
        total = number.reshape(1)
        everybody = tuple(range(self.transport.num_ranks))
        pending = self.transport.all_reduce(total, everybody, "meeting")
        limit = time.monotonic() + _GLANCING
        while self.executor.under_way and not pending.done() and time.monotonic() < limit:
            self._use_what_is_there(self.awaited)
            time.sleep(_GLANCE)
        self._wait(pending, ins)
        self._record("wait", ins, start)
        return total[0]

    # Waiting and recording

    def _wait(self, pending: Pending, ins: Instruction) -> None:
        self.executor.wait(pending, ins)

    def _record(self, lane: str, ins: Instruction, start: Moment) -> None:
        self.result.records.append((lane, ins, start, self.clock.now()))
