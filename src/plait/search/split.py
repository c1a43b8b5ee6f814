"""Which parameters of a stage are split, where the way to share all layers is known."""

from plait.search.loads import whole_chain
from plait.search.problem import Problem


def split_of(problem: Problem, start: int, end: int, tensor: int) -> dict[str, int]:
    """Of a stage on tensor groups: along which dimension each parameter that is not whole is split.

    What other stages read too is whole, as they may not see it in the same parts.
    """
    if tensor == 1:
        return {}
    sharding = next(one for one in whole_chain(problem.graph, problem.costs) if one.degree == tensor)
    own = {p.name for p in problem.graph.parameters if all(start <= atom < end for atom in p.atoms)}
    return {name: dimension for name, dimension in sharding.split.items() if name in own}
