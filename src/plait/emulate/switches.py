"""Aggregating switches on the bed: a daemon in the switch's namespace, whose packets pass the wires as all others."""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from plait.cost.aggregation import nearest_aggregator
from plait.emulate.commands import inside
from plait.emulate.namespaces import Bed
from plait.errors import PlaitError
from plait.plan import Plan
from plait.switch import native
from plait.switch.daemon import Switch
from plait.sync.places import ADDRESS_VARIABLE, KEY_VARIABLE
from plait.sync.strategies import AT_SWITCH


def switch_of(plan: Plan) -> str | None:
    """The switch that sums the plan's gradients, if one does."""
    if plan.sync not in AT_SWITCH or plan.most_replicas == 1:
        return None
    if lack := native.missing():
        raise PlaitError(f"a plan with {plan.sync} sums cannot be emulated here: {lack}.")
    return nearest_aggregator(plan.devices, plan.cluster).switch


@contextmanager
def serving(bed: Bed, switch: str | None) -> Iterator[Mapping[str, str]]:
    """The switch at work, and what ranks must have in their environment to find it."""
    if switch is None:
        yield {}
        return
    names = [vertex.name for vertex in bed.topology.vertices]
    if switch not in names:  # all replicas are in one host
        yield {}
        return
    position, key = names.index(switch), secrets.token_hex(16)
    with inside(bed.namespace(position)), punctual():
        daemon = Switch(key=key, host=bed.topology.vertices[position].address)
    with daemon:
        address, port = daemon.address
        yield {ADDRESS_VARIABLE: f"{address}:{port}", KEY_VARIABLE: key}


@contextmanager
def punctual() -> Iterator[None]:
    """Threads that start in here go before what else the machine computes, as the bed's ranks do."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)
