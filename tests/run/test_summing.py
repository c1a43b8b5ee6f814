"""Gradient sums: which groups of ranks they need, and that their rounds go on by themselves."""

import threading
from typing import Any

import pytest
import torch

from plait.run.summing import Summing

TWO_HOSTS = ("a", "b", "a", "b")


class Recorder:
    """A transport that notes what is asked of it."""

    rank, num_ranks = 0, 4

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.all_asked = threading.Event()
        self.fails = False

    def wait(self) -> None:
        if self.fails:
            raise RuntimeError("Connection closed")

    def _note(self, what: str) -> "Recorder":
        self.asked.append(what)
        if what.startswith("broadcast"):
            self.all_asked.set()
        return self

    def reduce(self, tensor: Any, ranks: Any, root: int, purpose: str) -> "Recorder":
        return self._note(f"reduce {ranks} {root}")

    def all_reduce(self, tensor: Any, ranks: Any, purpose: str = "") -> "Recorder":
        return self._note(f"all_reduce {ranks}")

    def broadcast(self, tensor: Any, ranks: Any, root: int, purpose: str = "") -> "Recorder":
        return self._note(f"broadcast {ranks} {root}")


def test_a_ring_visits_the_hosts_one_after_the_other() -> None:
    assert Summing("ring", TWO_HOSTS).groups((0, 1, 2, 3)) == [("gradients", (0, 2, 1, 3))]


def test_with_one_rank_in_each_host_a_hierarchy_is_a_ring() -> None:
    assert Summing("hierarchical", TWO_HOSTS).groups((1, 0)) == [("gradients", (1, 0))]


def test_shards_have_groups_of_their_own() -> None:
    groups = Summing("hierarchical", TWO_HOSTS).groups((0, 1, 2, 3))
    assert len(groups) == len(set(groups)) == 2 * 2 * 2 + 2
    assert {ranks for _, ranks in groups} == {(0, 2), (1, 3), (0, 1), (2, 3)}


@pytest.mark.parametrize("name", ["hierarchical", "parameter-server"])
def test_a_sum_goes_on_while_nobody_waits_for_it(name: str) -> None:
    transport = Recorder()
    Summing(name, TWO_HOSTS).start(transport, torch.zeros(8), (0, 1, 2, 3))  # type: ignore[arg-type]
    assert transport.all_asked.wait(5.0)
    assert transport.asked[0].startswith("reduce")


def test_what_goes_wrong_is_raised_where_the_sum_is_waited_for() -> None:
    transport = Recorder()
    transport.fails = True
    pending = Summing("hierarchical", TWO_HOSTS).start(transport, torch.zeros(8), (0, 1, 2, 3))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Connection closed"):
        pending.wait()
