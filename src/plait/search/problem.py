"""The noun `Problem`: what any planner is asked, the classical ones as well as Plait's own."""

from dataclasses import dataclass
from typing import Any

from plait.cluster import Cluster
from plait.cost import Costs
from plait.graph import Graph


@dataclass(frozen=True)
class Problem:
    """Train `graph` on `cluster`, `batch_size` rows a step."""

    graph: Graph
    costs: Costs
    cluster: Cluster
    batch_size: int
    batch: Any = None  # shape and type of an example batch (`plait.plan.batches.describe`), kept in the plan
    micro_batches: int | None = None  # fixed by the user; None is for the planner to choose
    overlap: str = "full"  # of gradient sums in every plan, one of `plait.plan.OVERLAPS`
