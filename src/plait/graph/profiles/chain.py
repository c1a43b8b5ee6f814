"""From a profile to the `Graph` that planning reads: inputs left out, tuples kept whole, the rest in a chain."""

from collections import defaultdict
from collections.abc import Mapping

import networkx as nx

from plait.errors import PlaitError
from plait.graph.graph import Atom, Graph, Parameter, Value
from plait.graph.profiles.profile import Profile, ProfileEdge, ProfileNode
from plait.graph.reorder import cheapest_chain, reordered

_TUPLE_ITEM = "__getitem__"


def profile_graph(profile: Profile, *, search_order: bool = True) -> Graph:
    """The atoms of `profile` in an order with few bytes alive between them, or as the tool numbered them.

    Raises PlaitError where the edges form a circle or nothing computes.
    """
    graph = _given_chain(profile)
    return reordered(graph, cheapest_chain(graph)) if search_order else graph


def _given_chain(profile: Profile) -> Graph:
    order = _running_order(profile)
    sources: dict[str, list[str]] = defaultdict(list)
    for edge in profile.edges:
        sources[edge.target].append(edge.source)
    inputs = _inputs(profile, order, sources)
    if not any(node.plain.forward_seconds for node in profile.nodes if node.name not in inputs):
        raise PlaitError(
            f"profile {profile.name} has no node that takes time in the forward, so there is nothing to plan. "
            "Give a profile with measured times."
        )
    head_of = _heads(profile, [name for name in order if name not in inputs], sources)
    heads = list(dict.fromkeys(head_of.values()))
    place = {head: index for index, head in enumerate(heads)}
    atom_of = {name: place[head] for name, head in head_of.items()}
    return Graph(
        name=profile.name,
        atoms=_atoms(profile, head_of, heads),
        values=_values(profile, order, sources, atom_of),
        parameters=tuple(
            Parameter(name, (size,), "uint8", (atom_of[name],), trainable=True, is_buffer=False)
            for name in head_of
            if (size := profile.node_by_name[name].plain.parameter_bytes)
        ),
    )


def _running_order(profile: Profile) -> list[str]:
    """Every node after those that feed it; beside one another, in the order of the profile."""
    graph = nx.DiGraph([(edge.source, edge.target) for edge in profile.edges])
    graph.add_nodes_from(node.name for node in profile.nodes)
    position = {node.name: index for index, node in enumerate(profile.nodes)}
    try:
        return list(nx.lexicographical_topological_sort(graph, key=position.__getitem__))
    except nx.NetworkXUnfeasible:
        circle = [source for source, _ in nx.find_cycle(graph)]
        shown = " -> ".join([*circle, circle[0]] if len(circle) <= 8 else [*circle[:8], "…", circle[0]])
        raise PlaitError(
            f"profile {profile.name}: nodes feed one another in a circle ({shown}), so none of them can run first. "
            "Remove the edge that points back."
        ) from None


def _inputs(profile: Profile, order: list[str], sources: Mapping[str, list[str]]) -> set[str]:
    """What the batch brings: it reaches every stage by itself, so it is neither work nor sent.

    An `Input…` of PipeDream has the time of loading data, not of computing. What neither computes nor holds
    parameters and comes from inputs alone (an item of the batch, an empty initial state) is an input too.
    """
    found: set[str] = set()
    for name in order:
        node = profile.node_by_name[name]
        given = not sources[name] and node.description.startswith("Input")
        if given or (node.plain.idle and all(source in found for source in sources[name])):
            found.add(name)
    return found


def _heads(profile: Profile, order: list[str], sources: Mapping[str, list[str]]) -> dict[str, str]:
    """The first node of each node's atom: an item picked from a tuple goes with what makes the tuple."""
    head_of: dict[str, str] = {}
    for name in order:
        picked = profile.node_by_name[name].description.startswith(_TUPLE_ITEM) and len(sources[name]) == 1
        head_of[name] = head_of.get(sources[name][0], name) if picked else name
    return head_of


def _atoms(profile: Profile, head_of: Mapping[str, str], heads: list[str]) -> tuple[Atom, ...]:
    members: dict[str, list[str]] = defaultdict(list)
    for name, head in head_of.items():
        members[head].append(name)
    return tuple(_atom(profile.node_by_name[head], members[head]) for head in heads)


def _atom(head: ProfileNode, members: list[str]) -> Atom:
    binds = ("tuple: items are picked where it is made",) if len(members) > 1 else ()
    return Atom(f"{head.name} {head.operation}".strip(), head.name, tuple(members), binds)


def _values(
    profile: Profile, order: list[str], sources: Mapping[str, list[str]], atom_of: Mapping[str, int]
) -> tuple[Value, ...]:
    """One value per node and size: edges from a node that carry the same bytes carry the same tensor."""
    learning = _learning(profile, order, sources)
    crossing: dict[tuple[str, int, bool], set[int]] = defaultdict(set)
    for edge in profile.edges:
        if edge.source in atom_of and atom_of[edge.source] != atom_of[edge.target]:
            crossing[_tensor(edge)].add(atom_of[edge.target])
    sizes: dict[str, int] = defaultdict(int)
    values = []
    for (source, num_bytes, per_row), consumers in sorted(crossing.items(), key=lambda item: atom_of[item[0][0]]):
        sizes[source] += 1
        values.append(
            Value(
                name=source if sizes[source] == 1 else f"{source}.{sizes[source]}",
                producer=atom_of[source],
                consumers=tuple(sorted(consumers)),
                shape=(num_bytes,),
                dtype="uint8",
                batch_dim=0 if per_row else None,
                requires_grad=per_row and source in learning,
            )
        )
    return tuple(values)


def _tensor(edge: ProfileEdge) -> tuple[str, int, bool]:
    return edge.source, edge.num_bytes, edge.per_row


def _learning(profile: Profile, order: list[str], sources: Mapping[str, list[str]]) -> set[str]:
    """Nodes whose output has a gradient: they have a backward or parameters, or come after one that does."""
    found: set[str] = set()
    for name in order:
        way = profile.node_by_name[name].plain
        if way.backward_seconds or way.parameter_bytes or any(source in found for source in sources[name]):
            found.add(name)
    return found
