"""All plans of a small case: every partition, every replication, every mapping; devices may stay idle.

A sequence of n distinct devices, cut into S groups, is one mapping: the order inside a group says which rows a
replica takes and who is whose neighbour in the ring, so it matters too. Of a model of L atoms on D devices there are

    sum over n, S of  D! / (D - n)!  C(n - 1, S - 1)  C(L - 1, S - 1).
"""

from collections.abc import Iterator
from itertools import combinations, pairwise, permutations

from plait.cluster import Cluster
from plait.errors import PlaitError
from plait.graph import Graph
from plait.plan import Plan, even_stages, validate


def all_plans(graph: Graph, cluster: Cluster, batch_size: int, micro_batches: int) -> Iterator[Plan]:
    """Those that can run, without overlap: a row for every replica, no stage replicated whose rows must stay whole."""
    num_atoms, num_devices = len(graph.atoms), len(cluster.devices)
    for used in range(1, num_devices + 1):
        for stages in range(1, min(used, num_atoms) + 1):
            for groups in combinations(range(1, used), stages - 1):
                edges = list(pairwise([0, *groups, used]))
                for boundaries in combinations(range(1, num_atoms), stages - 1):
                    for order in permutations(range(num_devices), used):
                        devices = [order[first:last] for first, last in edges]
                        plan = Plan(
                            model=graph.name,
                            fingerprint=graph.fingerprint,
                            cluster=cluster,
                            batch_size=batch_size,
                            micro_batches=micro_batches,
                            schedule="1f1b",
                            stages=even_stages(boundaries, num_atoms, devices),
                            overlap="off",
                        )
                        try:
                            validate(plan, graph)
                        except PlaitError:
                            break  # no other order of the devices makes it valid
                        yield plan
