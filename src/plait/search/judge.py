"""Judging a plan: its program made, its memory predicted, its step simulated."""

import math
from dataclasses import dataclass, replace

from plait.cost import Costs
from plait.errors import PlaitError
from plait.graph import Graph
from plait.plan import Plan, validate
from plait.program import Program, RankMemory, check_memory, check_program, compile_program, predict_memory
from plait.search.bounds import Bound
from plait.simulate import Timeline, simulate


@dataclass(frozen=True)
class Candidate:
    """A plan, its predicted timeline and memory, and a time no order of its micro-batches beats, once asked for."""

    plan: Plan
    timeline: Timeline
    memory: tuple[RankMemory, ...]
    bound: Bound | None = None

    @property
    def step_seconds(self) -> float:
        return self.timeline.step_seconds


class DoesNotFit(PlaitError):
    """`missing_bytes` by rank, of those whose device has too little memory."""

    def __init__(self, why: str, missing_bytes: dict[int, int]) -> None:
        super().__init__(why)
        self.missing_bytes = missing_bytes


@dataclass(frozen=True)
class Trial:
    """A plan's program and what its step takes; its memory, where that has been looked at and fits."""

    program: Program
    timeline: Timeline
    memory: tuple[RankMemory, ...] | None

    @property
    def seconds(self) -> float:
        return self.timeline.step_seconds


def evaluate(plan: Plan, graph: Graph, costs: Costs, trial: Trial | None = None) -> Candidate:
    """Validates, compiles, checks and simulates one plan. Raises PlaitError where it cannot run.

    What a trial of the same plan has found is not worked out again.
    """
    validate(plan, graph)
    program = trial.program if trial else compile_program(plan, graph)
    check_program(program)
    memory = (trial.memory if trial else None) or predict_memory(program, plan, graph, costs)
    check_memory(memory, plan)
    timeline = trial.timeline if trial else simulate(program, plan, costs)
    return Candidate(replace(plan, predicted_seconds=timeline.step_seconds), timeline, memory)


def try_out(plan: Plan, graph: Graph, costs: Costs, *, matters_below: float = math.inf) -> Trial:
    """The step of a program that is trusted to be right: a search proves only what it returns.

    Raises DoesNotFit, or another PlaitError where it cannot run; but memory, which takes longer to predict than a step,
    is not looked at where the step takes `matters_below` or more.
    """
    validate(plan, graph)
    program = compile_program(plan, graph)
    timeline = simulate(program, plan, costs)
    if timeline.step_seconds >= matters_below:
        return Trial(program, timeline, None)
    memory = predict_memory(program, plan, graph, costs)
    devices = plan.cluster.devices
    missing = {
        rank: use.peak - devices[device].memory_bytes
        for rank, (device, use) in enumerate(zip(plan.devices, memory, strict=True))
        if use.peak > devices[device].memory_bytes
    }
    try:
        check_memory(memory, plan)
    except PlaitError as error:
        raise DoesNotFit(str(error), missing) from None
    return Trial(program, timeline, memory)
