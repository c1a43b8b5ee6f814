"""Work in processes on a bed of network namespaces, beside an aggregating switch: real packets on shaped wires."""

import contextlib
import multiprocessing
import os
import secrets
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist

from plait.cluster import Cluster
from plait.emulate.commands import enter, inside
from plait.emulate.namespaces import DATA_INTERFACE, Bed
from plait.emulate.switches import punctual
from plait.emulate.topology import topology
from plait.switch.daemon import Switch
from plait.sync.places import SwitchPlace

_FORK = multiprocessing.get_context("fork")
LIMIT = 170.0


def on_bed(
    cluster: Cluster, devices: Sequence[int], work: Callable[[int, SwitchPlace | None], Any], *, mtu: int = 9000
) -> list[Any]:
    """What `work(rank, switch)` returns on each device (plain data). The first switch that sums packets does so."""
    layout = topology(cluster, devices)
    bandwidths = [cluster.links[wire.index].bandwidth for wire in layout.wires]
    processes, pipes = [], []
    for rank in range(len(devices)):  # before there are threads
        here, there = _FORK.Pipe()
        process = _FORK.Process(target=_rank, args=(work, rank, len(devices), there), daemon=True)
        process.start()
        processes.append(process)
        pipes.append(here)
    try:
        with Bed(layout, bandwidths, mtu=mtu) as bed, contextlib.ExitStack() as stack:
            bed.own([process.pid for process in processes if process.pid])
            place = _switch(bed, cluster, stack)
            with inside(bed.office):
                store = dist.TCPStore(bed.host, 0, len(devices), is_master=True, wait_for_workers=False)
            for rank, pipe in enumerate(pipes):
                pipe.send((bed.namespace(rank), bed.host, store.port, place))
            return _answers(pipes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _switch(bed: Bed, cluster: Cluster, stack: contextlib.ExitStack) -> SwitchPlace | None:
    if not cluster.aggregators:
        return None
    names = [vertex.name for vertex in bed.topology.vertices]
    position, key = names.index(cluster.aggregators[0].switch), secrets.token_hex(8)
    with inside(bed.namespace(position)), punctual():
        daemon = stack.enter_context(Switch(key=key, host=bed.topology.vertices[position].address))
    return SwitchPlace(daemon.address, key, "bench")


def _answers(pipes: Sequence[Any]) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in found], LIMIT)
        if not ready:
            raise TimeoutError(f"ranks {sorted(set(range(len(pipes))) - found.keys())} did not end in {LIMIT:.0f} s")
        for pipe in ready:
            rank = pipes.index(pipe)
            kind, found[rank] = pipe.recv()
            if kind == "failed":
                raise RuntimeError(f"rank {rank}: {found[rank]}")
    return [found[rank] for rank in range(len(pipes))]


def _rank(work: Callable[[int, SwitchPlace | None], Any], rank: int, num_ranks: int, pipe: Any) -> None:
    try:
        torch.set_num_threads(1)
        namespace, host, port, place = pipe.recv()
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        enter(namespace)
        os.environ["GLOO_SOCKET_IFNAME"] = DATA_INTERFACE
        store = dist.TCPStore(host, port, num_ranks, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=LIMIT))
        pipe.send(("done", work(rank, place)))
    except BaseException:  # noqa: BLE001 - told to whoever waits
        pipe.send(("failed", traceback.format_exc()))
    finally:
        os._exit(0)
