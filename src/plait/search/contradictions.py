"""Pins together: the limits they set, or which of them cannot hold and why."""

from collections.abc import Callable, Collection, Sequence

from plait.errors import PlaitError
from plait.graph import Graph
from plait.graph.names import names_of
from plait.search.demands import Demand, demand_of
from plait.search.limits import Limits, all_of, inside
from plait.search.pins import Pin


def limits_of(pins: Sequence[Pin], graph: Graph) -> Limits:
    """Raises PlaitError naming the pins that cannot hold, alone or together."""
    demands = _demands(pins, graph)
    limits = _limits(demands, graph)
    if not limits.stage_counts:
        core = _core(demands, lambda some: bool(_limits(some, graph).stage_counts))
        raise PlaitError(_contradiction(core, graph))
    return limits


def check_stage_counts(pins: Sequence[Pin], graph: Graph, counts: Collection[int]) -> None:
    """Raises PlaitError where pins that hold together leave no partition into any of `counts` stages."""

    def fit(some: Sequence[Demand]) -> bool:
        return not _limits(some, graph).stage_counts.isdisjoint(counts)

    demands = _demands(pins, graph)
    if not fit(demands):
        core = _core(demands, fit)
        possible = _limits(core, graph).stage_counts
        if min(possible) > max(counts):
            needed = f"at least {min(possible)}"
        else:
            needed = f"at most {max(possible)}" if max(possible) < min(counts) else _numbers(possible)
        raise PlaitError(
            f"{_named(core)} {'needs' if len(core) == 1 else 'together need'} {needed} stages, but the wishes and "
            f"devices allow {_numbers(counts)}. Change the number of stages or of devices, or drop a pin."
        )


def _demands(pins: Sequence[Pin], graph: Graph) -> list[Demand]:
    names = names_of(graph)
    return [demand_of(pin, graph, names) for pin in pins]


def _limits(demands: Sequence[Demand], graph: Graph) -> Limits:
    return all_of((demand.limits for demand in demands), len(graph.atoms))


def _core(demands: Sequence[Demand], hold: Callable[[Sequence[Demand]], bool]) -> list[Demand]:
    """A smallest part of `demands` that does not hold: without any one of it, the rest does."""
    core = list(demands)
    for demand in demands:
        rest = [other for other in core if other is not demand]
        if not hold(rest):
            core = rest
    return core


def _contradiction(core: Sequence[Demand], graph: Graph) -> str:
    reason = _cut_within(core, graph) or _wrong_order(core, graph) or _stages_do_not_fit(core, graph)
    if len(core) == 1:
        return f"{_named(core)} cannot hold: {reason}. Change or drop it."
    return f"{_named(core)} contradict each other: {reason}. Change or drop one of them."


def _cut_within(core: Sequence[Demand], graph: Graph) -> str:
    """A cut that one pin asks for and another rules out."""
    limits = _limits(core, graph)
    for boundary in sorted(limits.forced):
        across = [stage for stage, span in limits.held.items() if boundary in inside(span)]
        if across or boundary in limits.barred:
            before, behind = graph.atoms[boundary - 1].name, graph.atoms[boundary].name
            against = f"stage {across[0]} is to reach across it" if across else "ruled out"
            return f"a cut between {before} and {behind} is asked for, and {against}"
    return ""


def _wrong_order(core: Sequence[Demand], graph: Graph) -> str:
    """Something of an earlier stage that comes with, or after, something of a later one."""
    held = [
        (stage, name, atoms) for demand in core for stage in demand.limits.held for name, atoms in demand.atoms.items()
    ]
    for early, name, atoms in held:
        for late, other, others in held:
            if early < late and atoms[-1] >= others[0]:
                return _order_told(graph, (early, name, atoms), (late, other, others))
    return ""


def _order_told(graph: Graph, early: tuple[int, str, tuple[int, ...]], late: tuple[int, str, tuple[int, ...]]) -> str:
    (stage, name, atoms), (other_stage, other, others) = early, late
    shared = [graph.atoms[atom] for atom in atoms if atom in others]
    if shared:
        binds = "; ".join(shared[0].binds[:3])
        return f"{name} and {other} share the atom {shared[0].name}" + (f" ({binds})" if binds else "")
    if _needs(graph, atoms, others):
        return f"{name} is to be in stage {stage}, but needs what {other} computes in stage {other_stage}"
    return f"{name} is to be in stage {stage}, but comes after {other} of stage {other_stage} in the order of the atoms"


def _needs(graph: Graph, atoms: Collection[int], others: Collection[int]) -> bool:
    """Is anything in `atoms` computed, at however many removes, from anything in `others`?"""
    reached = set(others)
    for value in sorted(graph.values, key=lambda value: value.producer):
        if value.producer in reached:
            reached.update(value.consumers)
    return not reached.isdisjoint(set(atoms) - set(others))


def _stages_do_not_fit(core: Sequence[Demand], graph: Graph) -> str:
    """More, or fewer, cuts before a fixed stage than there can be."""
    limits = _limits(core, graph)
    previous, begin, landmark = 0, 0, "the start"
    for stage, (first, last) in sorted(limits.held.items()):
        between, cuts = range(begin + 1, first + 1), stage - previous
        places = sum(boundary not in limits.barred for boundary in between)
        asked = sum(boundary in limits.forced for boundary in between)
        where = f"between {landmark} and stage {stage} lie {cuts} cuts, but"
        if places < cuts:
            return f"{where} the atoms there leave room for {places}"
        if asked > cuts:
            return f"{where} {asked} {'is' if asked == 1 else 'are'} asked for"
        previous, begin, landmark = stage, last, f"stage {stage}"
    return "no partition into stages meets them all"


def _named(core: Sequence[Demand]) -> str:
    pins = " and ".join(f'"{demand.pin}"' for demand in core)
    return f"pin {pins}" if len(core) == 1 else f"the pins {pins}"


def _numbers(counts: Collection[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
