"""Costs from another tool's profile.

Its times are taken as those of the first kind of device; another kind takes them longer or shorter by the ratio of
what the two sustain (peak times efficiency). They were measured at one size, so all of a time grows with the rows.
Where there are weights, half of a backward is taken to be for their gradients.
"""

from collections.abc import Sequence

from plait.cost.analytic import Rates, computed_optimizer
from plait.cost.costs import AtomCost, Costs
from plait.graph import Graph
from plait.graph.profiles import Profile

ADAM_STATES = 2.0  # numbers kept per parameter: profiles say nothing of the optimiser


def imported_costs(
    profile: Profile, graph: Graph, *, kinds: Sequence[Rates], state_bytes_per_byte: float = ADAM_STATES
) -> Costs:
    """Costs of `graph`, the chain of `profile`, on every one of `kinds`; the profile is of the first."""
    measured = kinds[0]
    slower = {kind.name: _sustained(measured) / _sustained(kind) for kind in kinds}
    return Costs(
        graph.fingerprint,
        {name: tuple(_cost(profile, atom.nodes, factor) for atom in graph.atoms) for name, factor in slower.items()},
        {kind.name: computed_optimizer(kind, state_bytes_per_byte) for kind in kinds},
        {name: _source(profile, measured, name, factor) for name, factor in slower.items()},
    )


def _sustained(kind: Rates) -> float:
    return kind.flops_per_second * kind.efficiency


def _cost(profile: Profile, nodes: Sequence[str], slower: float) -> AtomCost:
    ways = [profile.node_by_name[name].plain for name in nodes]
    weight_seconds = sum(way.backward_seconds for way in ways if way.parameter_bytes > 0) / 2
    return AtomCost(
        forward_fixed=0.0,
        forward_per_row=slower * sum(way.forward_seconds for way in ways),
        backward_fixed=0.0,
        backward_per_row=slower * sum(way.backward_seconds for way in ways),
        saved_fixed=0.0,
        saved_per_row=sum(way.saved_bytes for way in ways),
        weight_fixed=0.0,
        weight_per_row=slower * weight_seconds,
    )


def _source(profile: Profile, measured: Rates, kind: str, slower: float) -> str:
    if kind == measured.name:
        return f"from {profile.name}, taken as measured with {profile.rows} row{'s' if profile.rows > 1 else ''}"
    return f"{slower:.2g} times those of {measured.name}"
