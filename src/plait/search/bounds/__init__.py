"""Step times that cannot be beaten: by any order of a plan's micro-batches, and by any plan at all."""

from plait.search.bounds.bound import Bound
from plait.search.bounds.cluster import cluster_bound
from plait.search.bounds.plan import plan_bound

__all__ = ["Bound", "cluster_bound", "plan_bound"]
