"""GPipe: an even split, all forwards and then all backwards, so that every micro-batch is held at once.

GPipe's own way out of memory, recomputing each stage's forward, is not taken.
"""

from plait.plan import Plan
from plait.search.baselines.even_split import even_split
from plait.search.problem import Problem


def gpipe(problem: Problem) -> Plan:
    return even_split("gpipe", "gpipe", problem)
