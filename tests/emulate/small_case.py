"""A small model on two hosts."""

from dataclasses import dataclass

from plait.cli.prepare import Prepared
from plait.cluster import Cluster
from plait.plan import Plan
from plait.search import Wishes, find_plans

JOB = "gpt2-tiny?layers=4&width=64&heads=2&sequence=32&dropout=0"
TWO_HOSTS = """
name = "two hosts"
[kinds.slow]
flops = "20 GFLOP/s"
memory = "16 GiB"
memory_bandwidth = "2 GB/s"
[[hosts]]
name = "node"
count = 2
devices = [{ kind = "slow", count = 2 }]
in_host = { bandwidth = "400 Mbit/s", latency = "5 us" }
uplink = { bandwidth = "100 Mbit/s", latency = "10 us" }
"""


@dataclass(frozen=True)
class Small:
    prepared: Prepared

    @property
    def cluster(self) -> Cluster:
        return self.prepared.cluster

    def plan(self, **wishes: object) -> Plan:
        problem = self.prepared
        found = find_plans(
            problem.graph,
            problem.costs,
            problem.cluster,
            batch_size=16,
            wishes=Wishes(micro_batches=4, **wishes),  # type: ignore[arg-type]
            budget_seconds=0.5,
        )
        return found.best.plan
