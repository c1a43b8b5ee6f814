"""Ways to sum by their names, as plans have them."""

from collections.abc import Sequence

from plait.errors import PlaitError
from plait.sync.aggregated import Aggregated
from plait.sync.chunks import CHUNK_BYTES
from plait.sync.hierarchical import Hierarchical
from plait.sync.hosts import Ranks, is_flat, ring_order
from plait.sync.parameter_server import ParameterServer
from plait.sync.places import SwitchPlace, lacking
from plait.sync.ring import Ring
from plait.sync.strategy import Strategy

AT_SWITCH = ("in-network", "passing")
NAMES = ("ring", "hierarchical", "parameter-server", "sharded-parameter-server", *AT_SWITCH)


def strategy_of(
    name: str, hosts: Sequence[Ranks], place: SwitchPlace | None = None, *, chunk_bytes: int = CHUNK_BYTES
) -> Strategy:
    """The way called `name` to sum over the ranks of `hosts`; `place` is for those that need a switch.

    Where phases overlap they do so chunk after chunk.
    """
    ranks = ring_order(hosts)
    if name in AT_SWITCH:
        return _at_switch(name, hosts, place, chunk_bytes)
    if name == "ring" or (name == "hierarchical" and is_flat(hosts)):
        return Ring(hosts)
    if name == "hierarchical":
        return Hierarchical(hosts)
    if name == "parameter-server":
        return ParameterServer(ranks, ranks[:1], chunk_bytes)
    if name == "sharded-parameter-server":
        return ParameterServer(ranks, ranks, chunk_bytes, name=name)
    raise PlaitError(f"unknown synchronisation {name!r}; choose one of {', '.join(NAMES)}.")


def _at_switch(name: str, hosts: Sequence[Ranks], place: SwitchPlace | None, chunk_bytes: int) -> Strategy:
    """Ranks of one host have no use for a switch outside it."""
    if len(hosts) == 1:
        return Ring(hosts)
    if why := lacking(place):
        raise PlaitError(f"{name} sums are off: {why}.")
    assert place is not None
    ranks = ring_order(hosts)
    workers = hosts if name == "passing" else [(rank,) for rank in ranks]
    job = f"{place.job}/{name}/{'-'.join(map(str, ranks))}"
    return Aggregated(name, workers, hosts, place.join, job=job, chunk_bytes=chunk_bytes)
