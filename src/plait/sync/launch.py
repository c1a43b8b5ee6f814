"""Synchronizers for a script of one's own, over all ranks of torch.distributed: with DistributedDataParallel, in two
lines.

    way = plait.sync.passing("10.0.0.1:7077", key="secret")
    model.register_comm_hook(way, plait.sync.hook)
"""

import os
import platform
import secrets
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from plait.errors import PlaitError
from plait.sync.collectives import TorchCollectives
from plait.sync.hosts import Ranks, by_host
from plait.sync.parameter_server import ParameterServer
from plait.sync.places import SwitchPlace, lacking, parse_address
from plait.sync.strategies import AT_SWITCH, strategy_of
from plait.sync.strategy import Strategy
from plait.sync.synchronizer import Synchronizer

TIMEOUT_SECONDS = 300.0
HOST_VARIABLE = "PLAIT_HOST"  # the name of this host, where it is not the machine's


def hook(way: Synchronizer, bucket: dist.GradBucket) -> Future[Tensor]:
    """The communication hook of DistributedDataParallel: the mean of a bucket's gradients."""
    if not way.mean:
        raise PlaitError(
            "DistributedDataParallel takes the mean of gradients, and this synchronizer sums: leave mean=False out."
        )
    # DistributedDataParallel heeds an error that a callback raises, and takes one that a future holds for its value.
    return way.all_reduce(bucket.buffer(), f"bucket {bucket.index()}").then(lambda summed: summed.wait())


def ring(*, mean: bool = True, timeout_seconds: float = TIMEOUT_SECONDS) -> Synchronizer:
    """A flat ring."""
    return _by_name("ring", None, mean, timeout_seconds)


def hierarchical(
    *, host: str | None = None, mean: bool = True, timeout_seconds: float = TIMEOUT_SECONDS
) -> Synchronizer:
    """Rings within hosts and one between them."""
    return _by_name("hierarchical", host, mean, timeout_seconds)


def parameter_server(
    *,
    servers: Sequence[int] = (0,),
    apart: bool = False,
    mean: bool = True,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Synchronizer:
    """Each of these ranks collects the sum of its shard and gives it to all.

    Servers that stand `apart` train nothing: they call `serve` instead, and the others are the workers.
    """
    way = _servers(servers, apart)
    return Synchronizer(way, _collectives(way, timeout_seconds), mean=mean)


def serve(servers: Sequence[int], *, timeout_seconds: float = TIMEOUT_SECONDS) -> int:
    """What a server that stands apart does until the workers close their synchronizers; gives the number of sums."""
    way = _servers(servers, apart=True)
    return way.serve(_collectives(way, timeout_seconds))


def in_network(
    switch: str, *, key: str, mean: bool = True, host: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> Synchronizer:
    """Every rank is a worker at the aggregating switch whose control channel is at `switch`, HOST:PORT."""
    return _by_name("in-network", host, mean, timeout_seconds, switch, key)


def passing(
    switch: str, *, key: str, mean: bool = True, host: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> Synchronizer:
    """Sums within hosts, then at the aggregating switch whose control channel is at `switch`, HOST:PORT.

    Ranks are in one host that say the same name: `host`, else the variable PLAIT_HOST, else the machine's.
    """
    return _by_name("passing", host, mean, timeout_seconds, switch, key)


def _by_name(
    name: str, host: str | None, mean: bool, timeout_seconds: float, switch: str | None = None, key: str = ""
) -> Synchronizer:
    own = host or os.environ.get(HOST_VARIABLE) or platform.node()
    place = SwitchPlace(parse_address(switch), key, secrets.token_hex(8)) if switch is not None else None
    answers: list[tuple[str, str, str | None]] = [("", "", None)] * dist.get_world_size()
    dist.all_gather_object(answers, (own, place.job if place else "", lacking(place) if place else None))
    for rank, (_, _, lack) in enumerate(answers):
        if lack is not None and name in AT_SWITCH:
            raise PlaitError(f"{name} sums are off, for rank {rank} says: {lack}.")
    if place is not None:
        place = SwitchPlace(place.address, place.key, answers[0][1])
    hosts = [tuple(group) for group in by_host(range(len(answers)), lambda rank: answers[rank][0])]
    way = strategy_of(name, hosts, place)
    return Synchronizer(way, _collectives(way, timeout_seconds), mean=mean)


def _servers(servers: Sequence[int], apart: bool) -> ParameterServer:
    everybody = range(dist.get_world_size())
    if not servers or not set(servers) <= set(everybody) or len(set(servers)) < len(servers):
        raise PlaitError(
            f"servers {list(servers)} must be one or more different ranks of 0..{len(everybody) - 1}: name such ranks."
        )
    workers: Ranks = tuple(rank for rank in everybody if not (apart and rank in servers))
    if not workers:
        raise PlaitError(f"with all of 0..{len(everybody) - 1} as servers apart nobody trains: name fewer.")
    return ParameterServer(workers, tuple(servers))


def _collectives(way: Strategy, timeout_seconds: float) -> TorchCollectives:
    has_gpus = torch.cuda.is_available() and "nccl" in dist.get_backend_config()
    return TorchCollectives(
        way.groups(),
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        timeout_seconds=timeout_seconds,
        backend="cpu:gloo,cuda:nccl" if has_gpus else None,
    )
