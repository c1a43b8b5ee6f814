"""Predicted memory per rank: what a device holds at its fullest, before anything runs.

Held throughout: parameters (a tied one once), the flat gradient buckets, optimiser state, buffers, the whole batch.

Held for a while, found by walking over the rank's instructions:

- a receive's buffer, from when it is posted, which is ahead of its use; two copies while parts are put together;
- while a forward or backward runs, the most that is alive in it (`stage_memory`): saved tensors once per memory, values
  on their way, temporaries such as the loss's softmax, gradients of activations, a parameter's gradient before it is
  added to its bucket;
- between forward and backward, what is saved, sent and received; of a stage that recomputes only what it received,
  and what it sent until that has left. Between the halves of a backward, what the gradients of weights are made of;
- the gradients of what was received, until their FREE or until the stage of this rank that they are for goes back;
- while gradients are clipped, a bucket in float64; while parameters are updated, the optimiser's temporaries.

Not counted: what a kernel takes for a moment (but for convolutions on a CPU, `plait.cost.kernels`) or a communication
library for itself, the allocator's gaps, the code and the interpreter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.cost import Costs
from plait.graph import Graph, Parameter
from plait.graph.cut import StageCut
from plait.graph.graph import ITEM_BYTES
from plait.plan import Plan
from plait.program.buckets import part_of
from plait.program.instructions import Instruction, Op
from plait.program.program import Program
from plait.program.stage_memory import MicroBatchMemory, StageMemory


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one rank: what it always holds, and the most it holds besides while a step runs.

    `recomputed` is what `activations` would be about, did all its stages recompute.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int
    batch: int = 0
    recomputed: int = 0

    @property
    def static(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.buffers + self.batch

    @property
    def peak(self) -> int:
        return self.static + self.activations


def predict_memory(program: Program, plan: Plan, graph: Graph, costs: Costs) -> tuple[RankMemory, ...]:
    """Memory of every rank."""
    cuts = plan.cut(graph)
    memories: dict[tuple[str, int], StageMemory] = {}
    batch = batch_bytes(plan.batch, program.batch_rows)
    result: list[RankMemory] = []
    known: dict[object, RankMemory] = {}
    for rank, device in enumerate(plan.devices):
        kind = plan.cluster.devices[device].kind.name
        looks = _looks(program, rank, kind)
        if looks in known:
            result.append(known[looks])
            continue
        own = program.stages_of_rank(rank)
        for index in own:
            key = kind, _alike(plan, index)
            if key not in memories:
                stage = plan.stages[index]
                on_group = costs.on_group(stage.start, stage.end, stage.tensor, stage.split)
                memories[key] = StageMemory(graph, on_group, kind)
        held = {p.name: p for index in own for p in _parts(plan, index, device, cuts[index].parameters)}
        trained = sum(p.num_bytes for p in held.values() if p.trainable)
        optimizer = costs.optimizer[kind]
        stages = {index: memories[kind, _alike(plan, index)] for index in own}
        walk = _Walk(program, rank, cuts, stages, held, optimizer.step_bytes_per_byte)
        known[looks] = RankMemory(
            parameters=sum(p.num_bytes for p in held.values() if not p.is_buffer),
            gradients=trained,
            optimizer=int(trained * optimizer.state_bytes_per_byte),
            buffers=sum(p.num_bytes for p in held.values() if p.is_buffer),
            activations=walk.most(),
            batch=batch,
            recomputed=walk.recomputed(),
        )
        result.append(known[looks])
    return tuple(result)


def _looks(program: Program, rank: int, kind: str) -> object:
    """The same for ranks that hold the same at all times: they do the same, with other rows and other peers."""
    own = {index: program.stages[index].ranks.index(rank) for index in program.stages_of_rank(rank)}
    spans = {
        (index, number): rows[replica]
        for index, replica in own.items()
        for number, rows in enumerate(program.stages[index].rows)
    }
    begins = [0, *(first for first, _ in spans.values())]  # of the rows it has, by stage and micro-batch
    place = {key: number for number, key in enumerate(spans, start=1)}
    done = tuple(
        (op, stage, number, name, gradient, last and last - begin, last - first)
        for op, stage, number, name, gradient, _, first, last, _ in program.ranks[rank]
        for begin in (begins[place.get((stage, number), 0)],)
    )
    places = tuple(program.stages[index].group(rank).index(rank) for index in own)  # parts may be of other sizes
    clips = any(ins[0] is Op.CLIP for ins in program.ranks[rank])
    return kind, places, rank if clips else None, tuple(last - first for first, last in spans.values()), done


def _alike(plan: Plan, stage: int) -> int:
    """One number for all stages of single devices."""
    return stage if plan.stages[stage].tensor > 1 else -1


def _parts(plan: Plan, index: int, device: int, parameters: Sequence[Parameter]) -> list[Parameter]:
    """What a device of a stage has of each parameter."""
    stage = plan.stages[index]
    place = stage.devices.index(device) % stage.tensor
    return [part_of(parameter, stage, place) for parameter in parameters]


def batch_bytes(description: Any, rows: int) -> int:
    """A batch of `rows` rows, from a plan's description of an example; every rank has it whole."""
    tensors = list(_described_tensors(description))
    example_rows = next((shape[0] for shape, _ in tensors if shape), 1)
    total = 0
    for shape, dtype in tensors:
        count = ITEM_BYTES[dtype]
        for size in shape:
            count *= size
        total += count * rows // example_rows if shape[:1] == [example_rows] else count
    return total


def _described_tensors(description: Any) -> list[tuple[list[int], str]]:
    if not isinstance(description, dict):
        return []
    if "tensor" in description:
        return [(description["tensor"], description["dtype"])]
    parts = description.get("dict", {}).values() if "dict" in description else []
    parts = [*parts, *description.get("tuple", []), *description.get("list", [])]
    return [found for part in parts for found in _described_tensors(part)]


class _Walk:
    """One rank's instructions with a count of what it holds, by stage, micro-batch and purpose."""

    def __init__(
        self,
        program: Program,
        rank: int,
        cuts: tuple[StageCut, ...],
        stages: Mapping[int, StageMemory],
        held: Mapping[str, Parameter],
        step_bytes_per_byte: float,
    ) -> None:
        self._program, self._rank, self._cuts, self._stages, self._parameters = program, rank, cuts, stages, held
        self._step_bytes_per_byte = step_bytes_per_byte
        self._of: dict[tuple[int, int], MicroBatchMemory] = {}
        self._held: dict[tuple[int, int, str], int] = {}
        self._posted: dict[tuple[int, int, bool, str], list[Instruction]] = {}
        self._now = self._most = 0
        self._sources = {(sink, value.name): source for value, source, sink in program.hand_overs}
        own = program.ranks[rank]
        self._returned = {(i.stage, i.micro_batch, i.name) for i in own if i.op is Op.SEND and i.gradient}

    def most(self) -> int:
        actions = {
            Op.RECV: self._receive,
            Op.F: self._forward,
            Op.SEND: self._send,
            Op.B: self._backward,
            Op.I: self._input_half,
            Op.W: self._weight_half,
            Op.FREE: self._free,
            Op.CLIP: self._clip,
            Op.STEP: self._step,
        }
        for ins in self._program.ranks[self._rank]:
            if (action := actions.get(ins.op)) is not None:
                action(ins)
        return self._most

    def _receive(self, ins: Instruction) -> None:
        self._posted.setdefault((ins.stage, ins.micro_batch, ins.gradient, ins.name), []).append(ins)
        self._hold(ins, "gradients" if ins.gradient else "inputs", self._message_bytes(ins))

    def _forward(self, ins: Instruction) -> None:
        self._join(ins, gradient=False)
        micro = self._micro_batch(ins)
        self._reach(micro.forward)
        table = self._program.stages[ins.stage]
        self._hold(ins, "kept", micro.kept)
        if table.recompute:
            self._hold(ins, "sent", micro.sent)

    def _send(self, ins: Instruction) -> None:
        """A part of the rows is a copy where they do not lie together; the whole is the tensor itself."""
        value = self._program.edge_by_name[ins.name].value
        table = self._program.stages[ins.stage]
        own = table.rows[ins.micro_batch][table.ranks.index(self._rank)]
        outermost = value.order[0] if value.order else 0
        if value.batch_dim not in (None, outermost) and (ins.first_row, ins.last_row) != own:
            self._hold(ins, "sent gradients" if ins.gradient else "sent", self._message_bytes(ins))

    def _backward(self, ins: Instruction) -> None:
        self._join(ins, gradient=True)
        self._release(ins, "kept")
        self._reach(self._micro_batch(ins).backward)
        self._end(ins)

    def _input_half(self, ins: Instruction) -> None:
        self._join(ins, gradient=True)
        self._release(ins, "kept")
        self._reach(self._micro_batch(ins).input_half)
        self._end(ins)
        self._hold(ins, "kept", self._micro_batch(ins).weight_inputs)

    def _weight_half(self, ins: Instruction) -> None:
        """One parameter's gradient at a time."""
        trained = [self._parameters[p.name].num_bytes for p in self._cuts[ins.stage].parameters if p.trainable]
        self._reach(max(trained, default=0))
        self._release(ins, "kept")

    def _end(self, ins: Instruction) -> None:
        """What came for the micro-batch is let go; the gradients of its inputs go back to where these came from."""
        self._release(ins, "inputs")
        self._release(ins, "gradients")
        for value in self._cuts[ins.stage].receives:
            if value.requires_grad:
                source = self._sources.get((ins.stage, value.name))
                if source is None and (ins.stage, ins.micro_batch, value.name) not in self._returned:
                    continue  # others of its tensor group have the same and send it
                holder, what = (ins, "sent gradients") if source is None else (ins._replace(stage=source), "gradients")
                self._hold(holder, what, value.num_bytes(ins.rows))

    def _free(self, ins: Instruction) -> None:
        self._release(ins, "sent gradients" if ins.gradient else "sent")

    def _clip(self, ins: Instruction) -> None:
        del ins
        own = [b for b in self._program.buckets if b.ranks[0] == self._rank]
        wide = max((self._numbers(b.parameters) for b in own), default=0) * ITEM_BYTES["float64"]
        self._reach(wide)

    def _step(self, ins: Instruction) -> None:
        largest = max(self._parameters[name].num_bytes for name in self._program.bucket_by_name[ins.name].parameters)
        self._reach(int(largest * self._step_bytes_per_byte))

    def recomputed(self) -> int:
        """About what `most` would be, did all stages of the rank recompute."""
        waiting = running = 0
        for index, in_flight in self._in_flight().items():
            table = self._program.stages[index]
            rows = max(last - first for first, last in (spans[table.ranks.index(self._rank)] for spans in table.rows))
            question = (table.start, table.end, rows)
            one = self._stages[index].of(*question, recompute=True, coupled=table.coupled)
            waiting += in_flight * one.waiting
            alone = self._stages[index].peak(*question, 1, recompute=True, coupled=table.coupled)
            running = max(running, alone - one.waiting)
        return waiting + running

    def _in_flight(self) -> dict[int, int]:
        """The most micro-batches between forward and backward, by stage."""
        now: dict[int, int] = {}
        most: dict[int, int] = {}
        for ins in self._program.ranks[self._rank]:
            if ins.op is Op.F:
                now[ins.stage] = now.get(ins.stage, 0) + 1
                most[ins.stage] = max(most.get(ins.stage, 0), now[ins.stage])
            elif ins.op in (Op.B, Op.I):
                now[ins.stage] -= 1
        return most

    # Counting

    def _join(self, ins: Instruction, *, gradient: bool) -> None:
        """Rows that came in parts are put together in a tensor of their own."""
        table = self._program.stages[ins.stage]
        own = table.rows[ins.micro_batch][table.ranks.index(self._rank)]
        what = "gradients" if gradient else "inputs"
        for key in [key for key in self._posted if key[:3] == (ins.stage, ins.micro_batch, gradient)]:
            parts = self._posted.pop(key)
            if len(parts) == 1 and (parts[0].first_row, parts[0].last_row) == own:
                continue
            whole = self._program.edge_by_name[key[3]].value.num_bytes(own[1] - own[0])
            self._reach(2 * whole)
            self._hold(ins, what, whole - sum(self._message_bytes(part) for part in parts))

    def _micro_batch(self, ins: Instruction) -> MicroBatchMemory:
        key = (ins.stage, ins.rows)
        if key not in self._of:
            table = self._program.stages[ins.stage]
            self._of[key] = self._stages[ins.stage].of(
                table.start, table.end, ins.rows, recompute=table.recompute, coupled=table.coupled
            )
        return self._of[key]

    def _numbers(self, names: tuple[str, ...]) -> int:
        return sum(self._parameters[n].num_bytes // ITEM_BYTES[self._parameters[n].dtype] for n in names)

    def _message_bytes(self, ins: Instruction) -> int:
        return self._program.edge_by_name[ins.name].value.num_bytes(ins.rows)

    def _hold(self, ins: Instruction, what: str, num_bytes: int) -> None:
        key = (ins.stage, ins.micro_batch, what)
        self._held[key] = self._held.get(key, 0) + num_bytes
        self._now += num_bytes
        self._reach(0)

    def _release(self, ins: Instruction, what: str) -> None:
        self._now -= self._held.pop((ins.stage, ins.micro_batch, what), 0)

    def _reach(self, num_bytes: int) -> None:
        """That much for a moment, on top of what is held."""
        self._most = max(self._most, self._now + num_bytes)
