"""What is known of sharing layers: which parameters of a stage are split, and for how many devices."""

from plait.errors import PlaitError
from plait.search.loads import whole_chain
from plait.search.problem import Problem
from plait.search.wishes import Wishes


def split_of(problem: Problem, start: int, end: int, tensor: int) -> dict[str, int]:
    """Of a stage on tensor groups: along which dimension each parameter that is not whole is split.

    What other stages read too is whole, as they may not see it in the same parts.
    """
    if tensor == 1:
        return {}
    sharding = next(one for one in whole_chain(problem.graph, problem.costs) if one.degree == tensor)
    own = {p.name for p in problem.graph.parameters if all(start <= atom < end for atom in p.atoms)}
    return {name: dimension for name, dimension in sharding.split.items() if name in own}


def check_known(wishes: Wishes, problem: Problem) -> None:
    """Raises PlaitError where more devices were asked for to share layers than a way is known for."""
    known = {1, *(one.degree for one in whole_chain(problem.graph, problem.costs))}
    if wishes.tensor not in (None, *known):
        raise PlaitError(
            f"{wishes.tensor} devices were asked for to share each layer, but of {problem.graph.name} it is not known "
            f"how so many would: {', '.join(map(str, sorted(known)))} can be planned for. A profile never says; a job "
            "is split over any number that divides the devices of a host."
        )
