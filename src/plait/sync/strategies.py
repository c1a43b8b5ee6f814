"""Ways to sum by their names, as plans have them."""

from collections.abc import Sequence

from plait.errors import PlaitError
from plait.sync.hierarchical import Hierarchical
from plait.sync.hosts import Ranks, is_flat, ring_order
from plait.sync.parameter_server import ParameterServer
from plait.sync.ring import Ring
from plait.sync.strategy import Strategy

NAMES = ("ring", "hierarchical", "parameter-server", "sharded-parameter-server")


def strategy_of(name: str, hosts: Sequence[Ranks]) -> Strategy:
    """The way called `name` to sum over the ranks of `hosts`."""
    ranks = ring_order(hosts)
    if name == "ring" or (name == "hierarchical" and is_flat(hosts)):
        return Ring(hosts)
    if name == "hierarchical":
        return Hierarchical(hosts)
    if name == "parameter-server":
        return ParameterServer(ranks, ranks[:1])
    if name == "sharded-parameter-server":
        return ParameterServer(ranks, ranks, name=name)
    raise PlaitError(f"unknown synchronisation {name!r}; choose one of {', '.join(NAMES)}.")
