"""PASSING and in-network sums with a stand-in for the switch: the phases around it, and what ranks do when it fails."""

import logging
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import on_ranks
from stand_in import StandIn
from test_strategies import HOSTS, SIZES, bits, expected, numbers

from plait.errors import PlaitError
from plait.switch.errors import SwitchUnavailable
from plait.sync import Synchronizer
from plait.sync.aggregated import Aggregated, Contributor
from plait.sync.collectives import TorchCollectives
from plait.sync.hosts import Ranks
from plait.sync.turns import IN_FLIGHT, Turns

CPU = torch.device("cpu")


class Switch:
    """What a rank makes contributors with, and a note of the jobs it joined."""

    def __init__(self, calls_that_fail: Collection[int] = (), *, refuses: bool = False) -> None:
        self._store = dist.distributed_c10d._get_default_store()
        self._fail = calls_that_fail
        self._refuses = refuses
        self.joined: list[str] = []

    def join(self, job: str, worker: int, count: int) -> Contributor:
        self.joined.append(job)
        if self._refuses:
            raise SwitchUnavailable("slots are exhausted")
        fail, self._fail = self._fail, ()  # a second time it serves
        return StandIn(self._store, job, worker, count, fail)


def synchronizer(
    switch: Switch, hosts: Sequence[Ranks], machines: Sequence[Ranks], *, limit: float = 20.0, **options: Any
) -> Synchronizer:
    way = Aggregated("passing", hosts, machines, switch.join, job="test", **options)
    return Synchronizer(way, TorchCollectives(way.groups(), device=CPU, timeout_seconds=limit))


def alone(hosts: Sequence[Ranks]) -> list[Ranks]:
    return [(rank,) for host in hosts for rank in host]


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", ["in-network", "passing"])
def test_sums_by_the_switch_are_the_same_everywhere(name: str, num_ranks: int) -> None:
    machines = HOSTS[num_ranks] if num_ranks > 2 else [(0,), (1,)]
    hosts = machines if name == "passing" else alone(machines)

    def work(rank: int) -> list[str]:
        switch = Switch()
        found = []
        way = synchronizer(switch, hosts, machines, chunk_bytes=1000)
        tensors = [numbers(rank, size, torch.float32) for size in SIZES]
        for future in [way.all_reduce(tensor) for tensor in tensors]:
            future.wait()
        for size, tensor in zip(SIZES, tensors, strict=True):
            torch.testing.assert_close(tensor.double(), expected(num_ranks, size), rtol=1e-5, atol=1e-5)
            found.append(bits(tensor))
        way.close()
        assert len(switch.joined) == (1 if any(rank in host[: min(map(len, hosts))] for host in hosts) else 0)
        return found

    assert len({tuple(found) for found in on_ranks(num_ranks, work)}) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_other_types_come_back_as_they_were(dtype: torch.dtype) -> None:
    def work(rank: int) -> str:
        tensor = numbers(rank, 999, dtype)
        synchronizer(Switch(), [(0,), (1,)], [(0,), (1,)]).all_reduce(tensor).wait()
        wanted = sum(numbers(other, 999, dtype).float() for other in range(2))
        assert torch.equal(tensor, wanted.to(dtype))  # type: ignore[union-attr]
        return bits(tensor)

    assert len(set(on_ranks(2, work))) == 1


def test_float64_is_refused_rather_than_rounded() -> None:
    def work(rank: int) -> None:
        with pytest.raises(PlaitError, match=r"passing sums have 32 bits .* float64"):
            synchronizer(Switch(), [(0,), (1,)], [(0,), (1,)]).all_reduce(torch.ones(3, dtype=torch.float64))

    on_ranks(2, work)


def test_when_the_switch_fails_one_worker_all_take_the_ring_and_come_back_later() -> None:
    """Chunk 3 of the second sum fails on rank 2 alone; the others have it, or wait for it in vain."""

    def work(rank: int) -> tuple[list[str], list[str], list[str]]:
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("plait.sync").addHandler(handler)
        switch = Switch([7] if rank == 2 else ())
        way = synchronizer(switch, HOSTS[4], HOSTS[4], chunk_bytes=1000)
        found = []
        for number in range(24):  # 4 chunks each
            tensor = numbers(rank, 1000 + number, torch.float32)
            way.all_reduce(tensor).wait()
            torch.testing.assert_close(tensor.double(), expected(4, 1000 + number), rtol=1e-5, atol=1e-5)
            found.append(bits(tensor))
        return found, switch.joined, messages

    answers = on_ranks(4, work)
    assert len({tuple(found) for found, _, _ in answers}) == 1
    for rank, (_, joined, messages) in enumerate(answers):
        shard = rank % 2
        assert joined == [f"test.{shard}.0", f"test.{shard}.1"]
        assert messages[0].startswith(f"rank {rank}: sum 1 goes over the hierarchical ring: ")
        assert len(messages) == IN_FLIGHT and all("a sum before it failed" in later for later in messages[1:])
    assert "told to fail" in answers[2][2][0]


def test_sums_already_on_their_way_when_the_switch_fails_are_right_too() -> None:
    def work(rank: int) -> list[str]:
        way = synchronizer(Switch([5] if rank == 1 else ()), HOSTS[4], HOSTS[4], chunk_bytes=1000)
        tensors = [numbers(rank, 1000 + number, torch.float32) for number in range(3 * IN_FLIGHT)]
        for future in [way.all_reduce(tensor) for tensor in tensors]:
            future.wait()
        for number, tensor in enumerate(tensors):
            torch.testing.assert_close(tensor.double(), expected(4, 1000 + number), rtol=1e-5, atol=1e-5)
        return [bits(tensor) for tensor in tensors]

    assert len({tuple(found) for found in on_ranks(4, work)}) == 1


def test_a_switch_that_refuses_everybody_is_asked_ever_less_often() -> None:
    def work(rank: int) -> int:
        switch = Switch(refuses=True)
        way = synchronizer(switch, [(0,), (1,)], [(0,), (1,)])
        for _ in range(60):
            tensor = torch.ones(10)
            way.all_reduce(tensor).wait()
            assert torch.equal(tensor, torch.full((10,), 2.0))
        return len(switch.joined)

    assert on_ranks(2, work) == [3, 3]  # sums 0, 20 and 56


def test_turns_double_the_pause_and_forget_it_after_a_success() -> None:
    turns = Turns()

    def next_try(failed_at: int) -> int:
        turns.outcome(failed_at, failed=True)
        for number in range(failed_at + 1, failed_at + IN_FLIGHT):
            turns.outcome(number, failed=True)  # were on their way
        return next(number for number in range(failed_at + 1, failed_at + 10_000) if turns.may_go(number))

    first = next_try(0)
    second = next_try(first)
    assert second - first == IN_FLIGHT + 2 * (first - IN_FLIGHT)
    turns.outcome(second, failed=False)
    assert next_try(second + 1) - (second + 1) == first
    assert turns.attempt == 3


def test_the_ring_in_its_stead_needs_the_ranks_that_are_left() -> None:
    """A rank that ends is no matter of the switch: the sum fails, in time and by name."""

    def work(rank: int) -> str:
        way = synchronizer(Switch(), [(0,), (1,)], [(0,), (1,)], limit=2.5)
        way.all_reduce(torch.ones(3)).wait()
        if rank == 1:
            return ""
        future = way.all_reduce(torch.ones(3))
        with pytest.raises(RuntimeError) as caught:
            future.wait()
        return str(caught.value)

    message, _ = on_ranks(2, work, seconds=40.0)
    assert message.startswith("rank 0 could not sum bucket 1 (3 elements) over ranks 0, 1 by passing: ")
