"""Costs for a whole cluster: measured where its devices are at hand, computed where they are not."""

from dataclasses import replace
from typing import Any

import torch

from plait.cluster import Cluster, DeviceKind
from plait.cost.analytic import analytic_costs
from plait.cost.cache import cache_key, load_costs, store_costs
from plait.cost.costs import Costs
from plait.cost.measure import measure_costs
from plait.cost.neighbours import busy_neighbours
from plait.cost.optimizer import OptimizerFactory, optimizer_cost
from plait.graph import Model
from plait.heap import keep_freed_memory


def estimate_costs(
    model: Model,
    batch: Any,
    cluster: Cluster,
    optimizer: OptimizerFactory,
    *,
    largest_rows: int,
    use_cache: bool = True,
) -> Costs:
    """Costs of `model` on every kind of device in `cluster`.

    `local:N` is measured here, on one thread as its ranks run; every other kind is computed from its preset.
    """
    kinds = {device.kind.name: device.kind for device in cluster.devices}
    here = [kind for kind in kinds.values() if is_here(cluster, kind)]
    elsewhere = [kind for kind in kinds.values() if kind not in here]
    parts = []
    if elsewhere:
        step = optimizer_cost(optimizer)
        parts.append(
            analytic_costs(
                model,
                batch,
                kinds=list(elsewhere),
                state_bytes_per_byte=step.state_bytes_per_byte,
                step_bytes_per_byte=step.step_bytes_per_byte,
            )
        )
    parts += [
        _measured(model, batch, kind, optimizer, largest_rows, use_cache, _neighbours(cluster, kind)) for kind in here
    ]
    costs = parts[0]
    for part in parts[1:]:
        costs = costs.joined(part)
    return costs


def is_here(cluster: Cluster, kind: DeviceKind) -> bool:
    """Is this kind of device in the machine Plait runs on?"""
    at_hand = kind.backend == "cpu" or torch.cuda.is_available()
    return at_hand and all(host.name == "local" for host in cluster.hosts)


def _neighbours(cluster: Cluster, kind: DeviceKind) -> int:
    """Other ranks that compute at the same time on this machine's cores."""
    slots = cluster.hosts[0].compute_slots or len(cluster.devices)
    return min(len(cluster.devices), slots) - 1 if kind.backend == "cpu" else 0


def _measured(
    model: Model,
    batch: Any,
    kind: DeviceKind,
    optimizer: OptimizerFactory,
    largest_rows: int,
    use_cache: bool,
    neighbours: int,
) -> Costs:
    rows = (max(1, largest_rows // 4), max(2, largest_rows))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        device = kind.backend
        key = cache_key(model.graph.fingerprint, kind.name, rows, device, neighbours)
        step = optimizer_cost(optimizer, device=device)
        found = load_costs(key) if use_cache else None
        if found is not None and found.fingerprint == model.graph.fingerprint:
            return replace(found, optimizer={kind.name: step})  # another optimiser is no reason to measure again
        with busy_neighbours(neighbours):
            costs = measure_costs(model, batch, kind=kind.name, rows=rows, optimizer=step, device=device)
        if use_cache:
            store_costs(key, costs)
        return costs
    finally:
        torch.set_num_threads(threads)
