"""The optimum of small cases, to measure how far plans and bounds are from it (extra `exact`)."""

from plait.search.exact.solve import ExactAnswer, solve_exactly

__all__ = ["ExactAnswer", "solve_exactly"]
