"""Predicted memory per rank: what a device holds at its fullest, before anything runs.

Held throughout: parameters, gradients, optimiser state, buffers. Held for a while: what a forward saves
until its backward, what was received until then, and what is being sent until it is freed.
"""

from dataclasses import dataclass

from plait.cost import Costs
from plait.errors import PlaitError
from plait.graph import Graph
from plait.plan import Plan
from plait.program.instructions import Op
from plait.program.program import Program


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one rank: what it always holds, and the most it holds of activations and messages."""

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int

    @property
    def peak(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.buffers + self.activations


def predict_memory(program: Program, plan: Plan, graph: Graph, costs: Costs) -> tuple[RankMemory, ...]:
    """Memory of every rank."""
    cuts = plan.cut(graph)
    result = []
    for rank, device in enumerate(plan.devices):
        kind = plan.cluster.devices[device].kind.name
        held = {p.name: p for index in program.stages_of_rank(rank) for p in cuts[index].parameters}.values()
        trained = sum(p.num_bytes for p in held if p.trainable)
        result.append(
            RankMemory(
                parameters=sum(p.num_bytes for p in held if not p.is_buffer),
                gradients=trained,
                optimizer=int(trained * costs.optimizer[kind].state_bytes_per_byte),
                buffers=sum(p.num_bytes for p in held if p.is_buffer),
                activations=_most_activations(program, rank, kind, costs),
            )
        )
    return tuple(result)


def _most_activations(program: Program, rank: int, kind: str, costs: Costs) -> int:
    now = most = 0
    held: dict[tuple[int, int, str], int] = {}

    def hold(stage: int, micro_batch: int, what: str, num_bytes: int) -> None:
        nonlocal now, most
        key = (stage, micro_batch, what)
        held[key] = held.get(key, 0) + num_bytes
        now += num_bytes
        most = max(most, now)

    for ins in program.ranks[rank]:
        key = (ins.stage, ins.micro_batch)
        if ins.op is Op.RECV:
            hold(*key, "gradients" if ins.gradient else "inputs", _message_bytes(program, ins.name, ins.rows))
        elif ins.op is Op.SEND:
            hold(
                *key,
                "sent gradients" if ins.gradient else "sent",
                _message_bytes(program, ins.name, ins.rows),
            )
        elif ins.op is Op.F:
            stage = program.stages[ins.stage]
            hold(*key, "saved", costs.saved_bytes(kind, stage.start, stage.end, ins.rows))
        elif ins.op in (Op.B, Op.W):
            for what in ("saved", "inputs", "gradients"):
                now -= held.pop((*key, what), 0)
        elif ins.op is Op.FREE:
            now -= held.pop((*key, "sent gradients" if ins.gradient else "sent"), 0)
    return most


def _message_bytes(program: Program, name: str, rows: int) -> int:
    return program.edge_by_name[name].value.num_bytes(rows)


def check_memory(memory: tuple[RankMemory, ...], plan: Plan) -> None:
    """Raises PlaitError naming the device that would run out, by how much, and what would help."""
    for rank, (device_index, use) in enumerate(zip(plan.devices, memory, strict=True)):
        device = plan.cluster.devices[device_index]
        if use.peak > device.memory_bytes:
            gib = 2**30
            raise PlaitError(
                f"rank {rank} on {device.name} would need {use.peak / gib:.2f} GiB but the device has "
                f"{device.memory_bytes / gib:.2f} GiB: {use.parameters / gib:.2f} parameters, "
                f"{use.gradients / gib:.2f} gradients, {use.optimizer / gib:.2f} optimiser state, "
                f"{use.activations / gib:.2f} activations. Use more stages, smaller micro-batches, or schedule 1f1b."
            )
