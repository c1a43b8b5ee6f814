"""What no order of micro-batches can beat, for plans whose replicas are groups of devices."""

from hypothesis import assume, given, settings
from program_strategies import Compiled, compiled

from plait.program import compile_program
from plait.search.bounds import plan_bound
from plait.simulate import simulate

ROUNDING = 1 + 1e-9


@given(compiled())
@settings(max_examples=150, deadline=None)
def test_no_simulated_step_beats_its_plans_bound(made: Compiled):
    assume(any(stage.tensor > 1 for stage in made.plan.stages))
    step = simulate(compile_program(made.plan, made.graph), made.plan, made.costs).step_seconds
    assert plan_bound(made.plan, made.graph, made.costs).seconds <= step * ROUNDING
