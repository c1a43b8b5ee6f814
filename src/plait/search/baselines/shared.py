"""A problem as a planner sees it for whom several devices that share each layer are one: a tensor group each.

Its atoms take a group's part of their work and what the group exchanges; its parameters are a device's parts. Such a
planner gives out the first device of every group.
"""

from dataclasses import replace

from plait.cost import AtomCost, Costs, GroupLinks, group_links, of_atoms
from plait.graph.sharding import Sharding
from plait.search.loads import part_bytes, whole_chain
from plait.search.problem import Problem


def group_sizes(problem: Problem) -> list[int]:
    """One, and what divides the devices of every host and is known of the model."""
    counts = [len(problem.cluster.devices_of(host.name)) for host in problem.cluster.hosts]
    known = sorted(one.degree for one in whole_chain(problem.graph, problem.costs))
    return [1, *(size for size in known if all(count % size == 0 for count in counts))]


def shared_problem(problem: Problem, tensor: int) -> Problem:
    """The same problem on groups of `tensor` devices in file order."""
    if tensor == 1:
        return problem
    sharding = next(one for one in whole_chain(problem.graph, problem.costs) if one.degree == tensor)
    parts = tuple(
        replace(parameter, shape=(part_bytes(parameter, sharding),), dtype="uint8")
        for parameter in problem.graph.parameters
    )
    graph = replace(problem.graph, parameters=parts)
    devices = range(len(problem.cluster.devices))
    groups = [tuple(devices[first : first + tensor]) for first in devices[::tensor]]
    links = group_links(groups[0], groups, problem.cluster)
    return replace(problem, graph=graph, costs=_with_exchanges(problem.costs, sharding, links))


def _with_exchanges(costs: Costs, sharding: Sharding, links: GroupLinks) -> Costs:
    own = costs.on_group(sharding.start, sharding.end, sharding.degree, sharding.split)
    atoms = {
        kind: tuple(_with_exchange(cost, sharding, atom, links) for atom, cost in enumerate(found))
        for kind, found in own.atoms.items()
    }
    return replace(own, atoms=atoms)


def _with_exchange(cost: AtomCost, sharding: Sharding, atom: int, links: GroupLinks) -> AtomCost:
    for phase in ("forward", "backward"):
        found = of_atoms(sharding, phase, atom, atom + 1)
        if found:
            fixed = links.exchange(found, 0)
            more = {f"{phase}_fixed": fixed, f"{phase}_per_row": links.exchange(found, 1) - fixed}
            cost = replace(cost, **{name: getattr(cost, name) + seconds for name, seconds in more.items()})
    return cost
