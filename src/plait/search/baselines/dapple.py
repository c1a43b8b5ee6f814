"""DAPPLE's planner: the latency of a whole pipeline around its pivot stage, searched over splits and placements.

Stages and the channels between them are the columns of one pipeline; a channel's forward and backward are those of
the activations and their gradients. With the pivot Q, the column that all others wait for,

    T_w = sum_{a <= Q} F_a                        until the pivot's first forward is done
    T_s = (M - 1) (F_Q + B_Q)                     its other micro-batches
    T_e = max_s ( A_s + sum_{s <= a <= Q} B_a )   its last backward, those before it, and their synchronisation
          (stages behind the pivot have ended by sum_{Q < a < s} B_a earlier)

and Q, first the last column, moves to an earlier one s where (M - 1)(F_s + B_s) exceeds T_s plus the F + B of the
columns between. The search starts from one stage on all devices and splits the last stage again and again: blocks
j..j' become a stage of their own on m devices, the rest stays on all others. The m devices are taken fresh-first
(hosts nobody uses yet), append-first (hosts begun already), or scatter-first (evenly from all hosts begun, or all where
none is). The program runs in 1F1B order: DAPPLE's early backward, with as many micro-batches in flight as there are
stages from a stage on (its policy A).
"""

from collections.abc import Iterator
from itertools import islice

from plait.plan import Plan
from plait.search.baselines.blocks import Blocks, blocks_of
from plait.search.baselines.choose import Option, best_plan, micro_batch_counts, options, spread
from plait.search.baselines.dapple_search import Search, Split
from plait.search.baselines.layout import Layout
from plait.search.baselines.setting import Setting
from plait.search.problem import Problem

_MOST_BLOCKS = 32
_SIZES = 4  # numbers of micro-batches that are planned for; each plan is then run with every number
_SPLITS = 3  # taken from each search, of those that fit in memory


def dapple(problem: Problem) -> Plan:
    return best_plan("dapple", problem, dapple_options(problem))


def dapple_options(problem: Problem) -> Iterator[Option]:
    setting = Setting(problem)
    blocks = blocks_of(problem, _MOST_BLOCKS)
    counts = spread(micro_batch_counts(problem, 1).tolist(), _SIZES)
    for count in counts:
        yield from _options(setting, blocks, count)


def _options(setting: Setting, blocks: Blocks, micro_batches: int) -> list[Option]:
    layouts = (_layout(setting, blocks, split) for _, split in Search(setting, blocks, micro_batches).best_splits())
    fitting = (found for layout in layouts if (found := options(layout, "1f1b")))
    return [option for found in islice(fitting, _SPLITS) for option in found]


def _layout(setting: Setting, blocks: Blocks, split: Split) -> Layout:
    return Layout(setting, blocks.atoms([start for start, _ in split[1:]]), tuple(devices for _, devices in split))
