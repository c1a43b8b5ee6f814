"""Judging a plan: its program made, its memory predicted, its step simulated."""

from dataclasses import dataclass, replace

from plait.cost import Costs
from plait.graph import Graph
from plait.plan import Plan, validate
from plait.program import RankMemory, check_memory, check_program, compile_program, predict_memory
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


def evaluate(plan: Plan, graph: Graph, costs: Costs, *, check: bool = True) -> Candidate:
    """Validates, compiles, checks and simulates one plan. Raises PlaitError where it cannot run.

    Without `check` the program is trusted: a search that looks at many plans proves those it returns.
    """
    validate(plan, graph)
    program = compile_program(plan, graph)
    if check:
        check_program(program)
    memory = predict_memory(program, plan, graph, costs)
    check_memory(memory, plan)
    timeline = simulate(program, plan, costs)
    return Candidate(replace(plan, predicted_seconds=timeline.step_seconds), timeline, memory)
