"""Step times that cannot be beaten: by any order of a plan's micro-batches, and by any plan at all."""

from plait.search.bounds.bound import Bound

__all__ = ["Bound"]
