"""Gradient sums: which groups of ranks they need, and that their rounds go on by themselves."""

import threading
from typing import Any

import pytest
import torch

from plait.run.sums import Sums
from plait.sync import SumFailed

TWO_HOSTS = ("a", "b", "a", "b")


class Recorder:
    """A transport that notes what is asked of it, as one that has nothing else to wait for."""

    rank, num_ranks = 0, 4

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.all_asked = threading.Event()
        self.fails = False

    def wait(self) -> None:
        if self.fails:
            raise RuntimeError("Connection closed")

    def _note(self, what: str, group: str) -> "Recorder":
        self.asked.append(what)
        if {"down", "give"} & set(group.split()):
            self.all_asked.set()
        return self

    def all_reduce(self, tensor: Any, ranks: Any, purpose: str = "") -> "Recorder":
        return self._note(f"all_reduce {ranks}", purpose)

    def send_to(self, tensor: Any, peer: int, group: Any) -> "Recorder":
        return self._note(f"send {peer}", group[0])

    def receive_from(self, tensor: Any, peer: int, group: Any) -> "Recorder":
        return self._note(f"receive {peer}", group[0])


def test_a_ring_visits_the_hosts_one_after_the_other() -> None:
    assert Sums("ring", TWO_HOSTS).groups((0, 1, 2, 3)) == [("gradients", (0, 2, 1, 3))]


def test_with_one_rank_in_each_host_a_hierarchy_is_a_ring() -> None:
    assert Sums("hierarchical", TWO_HOSTS).groups((1, 0)) == [("gradients", (1, 0))]


def test_every_phase_and_shard_has_groups_of_its_own() -> None:
    groups = Sums("hierarchical", TWO_HOSTS).groups((0, 1, 2, 3))
    phases, directions, num_hosts, shards = 2, 2, 2, 2
    assert len(groups) == len(set(groups)) == phases * directions * num_hosts + shards
    assert {ranks for _, ranks in groups} == {(0, 2), (1, 3), (0, 1), (2, 3)}


@pytest.mark.parametrize("name", ["hierarchical", "parameter-server", "sharded-parameter-server"])
def test_a_sum_goes_on_while_nobody_waits_for_it(name: str) -> None:
    transport = Recorder()
    Sums(name, TWO_HOSTS).start(transport, torch.zeros(8), (0, 1, 2, 3), "s0.0")  # type: ignore[arg-type]
    assert transport.all_asked.wait(5.0)
    assert transport.asked[0].startswith(("send", "receive"))


def test_what_goes_wrong_is_raised_where_the_sum_is_waited_for() -> None:
    transport = Recorder()
    transport.fails = True
    pending = Sums("hierarchical", TWO_HOSTS).start(transport, torch.zeros(8), (0, 1, 2, 3), "s0.0")  # type: ignore[arg-type]
    with pytest.raises(
        SumFailed, match=r"rank 0 could not sum s0.0 \(8 elements\) over ranks 0..3 .*Connection closed"
    ):
        pending.wait()
