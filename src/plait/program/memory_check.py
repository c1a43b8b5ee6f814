"""Does every rank fit its device? If not: by how much it does not, and what would make it fit."""

import math

from plait.cluster.units import format_bytes
from plait.errors import PlaitError
from plait.plan import Plan
from plait.program.memory import RankMemory


def check_memory(memory: tuple[RankMemory, ...], plan: Plan) -> None:
    """Raises PlaitError naming the first device that would run out, by how much, and what would help."""
    for rank, (index, use) in enumerate(zip(plan.devices, memory, strict=True)):
        device = plan.cluster.devices[index]
        if use.peak > device.memory_bytes:
            raise PlaitError(
                f"rank {rank} on {device.name} would need {format_bytes(use.peak)} but the device has "
                f"{format_bytes(device.memory_bytes)}, {format_bytes(use.peak - device.memory_bytes)} too little: "
                f"{format_bytes(use.parameters)} parameters, {format_bytes(use.gradients)} gradients, "
                f"{format_bytes(use.optimizer)} optimiser state, {format_bytes(use.activations)} activations and "
                f"messages. {_remedy(rank, use, plan, device.memory_bytes)}"
            )


def _remedy(rank: int, use: RankMemory, plan: Plan, limit: int) -> str:
    """What would bring the rank under `limit`; micro-batches and stages are taken to divide what they hold evenly."""
    positions = len(plan.positions)
    room = limit - use.static
    if room <= 0:
        divided = use.static - use.batch
        if limit <= use.batch:
            return f"A batch alone is {format_bytes(use.batch)}: use a smaller batch."
        stages = math.ceil(positions * divided / (limit - use.batch)) + 1  # and something for activations
        return f"Without activations it needs {format_bytes(use.static)}: use {stages} stages or more, now {positions}."
    found = [*_by_schedule(rank, use, plan, room), *_by_micro_batches(use, plan, room)]
    if use.recomputed <= room and not all(plan.stages[index].recompute for index in _stages_of(rank, plan)):
        found.append(f"recompute its activations (about {format_bytes(use.static + use.recomputed)})")
    if not found:
        more = math.ceil(positions * use.peak / limit)
        found = [f"use {more} stages or more, now {positions}, or a smaller batch"]
    text = ", or ".join(found)
    return f"{text[0].upper()}{text[1:]}."


def _by_schedule(rank: int, use: RankMemory, plan: Plan, room: int) -> list[str]:
    """1f1b holds no more micro-batches than there are positions from this one to the last."""
    position = next(p for p, (first, *_) in enumerate(plan.positions) if rank in plan.stage_ranks(first))
    held = len(plan.positions) - position
    if plan.schedule == "gpipe" and plan.micro_batches > held:
        activations = use.activations * (held + 1) // plan.micro_batches  # one more for messages
        if activations <= room:
            return [f"use schedule 1f1b (about {format_bytes(use.static + activations)})"]
    return []


def _by_micro_batches(use: RankMemory, plan: Plan, room: int) -> list[str]:
    """Smaller micro-batches help where a schedule holds a number of them, not all."""
    needed = plan.micro_batches * math.ceil(use.activations / room)
    if plan.schedule != "gpipe" and needed * plan.most_replicas <= plan.batch_size:
        return [f"use {needed} micro-batches, now {plan.micro_batches}"]
    return []


def _stages_of(rank: int, plan: Plan) -> list[int]:
    return [index for index in range(len(plan.stages)) if rank in plan.stage_ranks(index)]
