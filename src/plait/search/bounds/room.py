"""How much memory a rank has left for what its forwards save, and for what backwards in halves put off."""

import math
from bisect import bisect_right
from collections import defaultdict

from plait.cost import Costs
from plait.graph import Graph
from plait.plan import Plan
from plait.program import StageTable
from plait.program.buckets import part_of
from plait.program.stage_memory import StageMemory


def room_for_activations(plan: Plan, graph: Graph, costs: Costs) -> list[int]:
    """Bytes by rank: the device's memory less parameters, gradients, optimiser state and buffers."""
    starts = [stage.start for stage in plan.stages]
    held, trained = [0] * len(starts), [0] * len(starts)
    for parameter in graph.parameters:
        for stage in {bisect_right(starts, atom) - 1 for atom in parameter.atoms}:
            # The last device of a tensor group has the smallest parts, so no device has more room than said here.
            part = part_of(parameter, plan.stages[stage], plan.stages[stage].tensor - 1)
            held[stage] += part.num_bytes
            trained[stage] += part.num_bytes if parameter.trainable else 0
    stages_of: defaultdict[int, list[int]] = defaultdict(list)
    for index, stage_plan in enumerate(plan.stages):
        for number in stage_plan.devices:
            stages_of[number].append(index)
    room = []
    for device_index in plan.devices:
        device = plan.cluster.devices[device_index]
        own = stages_of[device_index]
        # A parameter that several stages of one device share is there once.
        alone = max if len(own) > 1 else sum
        state = 1 + costs.optimizer[device.kind.name].state_bytes_per_byte
        room.append(device.memory_bytes - int(alone(held[s] + trained[s] * state for s in own)))
    return room


def most_put_off(memory: StageMemory, stage: StageTable, rows: int, room: int) -> float:
    """Of how many micro-batches of so many rows the weight halves can be left when the last input half ends.

    That of the last one itself and those whose inputs and output gradients fit beside it. Of what a device of a tensor
    group keeps nothing is said.
    """
    if stage.tensor > 1:
        return math.inf
    kept = memory.of(stage.start, stage.end, rows, recompute=stage.recompute, coupled=stage.coupled).weight_inputs
    return room // kept + 1 if kept else math.inf
