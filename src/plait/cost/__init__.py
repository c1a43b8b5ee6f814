"""What a plan costs: compute per atom, links and collectives, memory."""

from plait.cost.analytic import analytic_costs
from plait.cost.collectives import ROUNDS, GroupLinks, group_links, of_atoms
from plait.cost.costs import AtomCost, Costs, OptimizerCost, Phase
from plait.cost.estimate import estimate_costs
from plait.cost.imported import imported_costs
from plait.cost.links import ring_all_reduce_seconds, transfer_seconds
from plait.cost.measure import measure_costs
from plait.cost.memory import ALWAYS_HELD, NEVER_SAVED, AtomMemory, GradientMemory, MemoryProfile, ValueMemory
from plait.cost.optimizer import OptimizerFactory, optimizer_cost
from plait.cost.synchronisation import SYNCHRONISATIONS, WITHOUT_A_SWITCH, check_synchronisation, sync_seconds

__all__ = [
    "ALWAYS_HELD",
    "NEVER_SAVED",
    "ROUNDS",
    "SYNCHRONISATIONS",
    "WITHOUT_A_SWITCH",
    "AtomCost",
    "AtomMemory",
    "Costs",
    "GradientMemory",
    "GroupLinks",
    "MemoryProfile",
    "OptimizerCost",
    "OptimizerFactory",
    "Phase",
    "ValueMemory",
    "analytic_costs",
    "check_synchronisation",
    "estimate_costs",
    "group_links",
    "imported_costs",
    "measure_costs",
    "of_atoms",
    "optimizer_cost",
    "ring_all_reduce_seconds",
    "sync_seconds",
    "transfer_seconds",
]
