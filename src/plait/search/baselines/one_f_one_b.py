"""An even split with 1F1B: as GPipe, but a stage holds at most as many micro-batches as there are stages from it on."""

from plait.plan import Plan
from plait.search.baselines.even_split import even_split
from plait.search.problem import Problem


def one_f_one_b(problem: Problem) -> Plan:
    return even_split("1f1b", "1f1b", problem)
