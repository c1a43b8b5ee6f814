"""Every way to sum, over real processes: one device's numbers, the same bits on all ranks."""

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from forked import on_ranks
from torch import Tensor

from plait.errors import PlaitError
from plait.sync import SumFailed, Synchronizer, strategy_of
from plait.sync.collectives import TorchCollectives
from plait.sync.hierarchical import Hierarchical
from plait.sync.hosts import Ranks
from plait.sync.parameter_server import ParameterServer
from plait.sync.strategy import Strategy

WAYS = ("ring", "hierarchical", "parameter-server", "sharded-parameter-server")
HOSTS: dict[int, list[Ranks]] = {2: [(0, 1)], 3: [(0, 2), (1,)], 4: [(0, 1), (2, 3)], 8: [(0, 1, 2), (3, 4), (5, 6, 7)]}
SIZES = (1, 2, 7, 1000, 4099)
TINY = 714 * 2.0**-149  # below the smallest normal number
CPU = torch.device("cpu")


def numbers(rank: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * size + rank), dtype=torch.float64).to(dtype)


def bits(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()


def synchronizers(strategies: Sequence[Strategy], *, mean: bool = False, limit: float = 30.0) -> list[Synchronizer]:
    groups = [group for strategy in strategies for group in strategy.groups()]
    collectives = TorchCollectives(groups, device=CPU, timeout_seconds=limit)
    return [Synchronizer(strategy, collectives, mean=mean) for strategy in strategies]


def expected(num_ranks: int, size: int) -> Tensor:
    return torch.stack([numbers(rank, size) for rank in range(num_ranks)]).sum(0)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_all_ways_give_the_sum_and_the_same_bits_everywhere(num_ranks: int) -> None:
    def work(rank: int) -> list[str]:
        found = []
        for synchronizer in synchronizers([strategy_of(name, HOSTS[num_ranks]) for name in WAYS]):
            tensors = [numbers(rank, size) for size in SIZES]
            futures = [synchronizer.all_reduce(tensor) for tensor in tensors]  # several under way
            for size, tensor, future in zip(SIZES, tensors, futures, strict=True):
                assert future.wait() is tensor
                torch.testing.assert_close(tensor, expected(num_ranks, size), rtol=1e-12, atol=1e-12)
                found.append(bits(tensor))
        return found

    first, *others = on_ranks(num_ranks, work)
    assert all(other == first for other in others)


def test_large_sums_are_cut_in_chunks_of_which_the_last_is_shorter() -> None:
    size = 10_000_019
    ways = [*(strategy_of(name, HOSTS[4]) for name in WAYS), Hierarchical(HOSTS[4], 3_000_001, "cut ")]

    def work(rank: int) -> list[str]:
        found = []
        for synchronizer in synchronizers(ways):
            tensor = (torch.arange(size, dtype=torch.float32) % 1013) * (rank + 1)  # sums are exact
            synchronizer.all_reduce(tensor).wait()
            assert torch.equal(tensor, (torch.arange(size, dtype=torch.float32) % 1013) * 10)
            found.append(bits(tensor))
        return found

    assert len({tuple(found) for found in on_ranks(4, work)}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_means_of_other_types(dtype: torch.dtype) -> None:
    def work(rank: int) -> list[str]:
        found = []
        for synchronizer in synchronizers([strategy_of(name, HOSTS[3]) for name in WAYS], mean=True):
            tensor = numbers(rank, 501, dtype)
            synchronizer.all_reduce(tensor).wait()
            mean = torch.stack([numbers(other, 501, dtype).double() for other in range(3)]).mean(0)
            largest = 2 * float(torch.finfo(dtype).eps) * mean.abs().max().item() * 3
            assert (tensor.double() - mean).abs().max().item() <= largest
            found.append(bits(tensor))
        return found

    assert len({tuple(found) for found in on_ranks(3, work)}) == 1


def test_infinities_and_nans_pass_as_in_a_sum_of_floats() -> None:
    special = torch.tensor([0.0, -0.0, TINY, float("inf"), float("inf"), float("nan"), 3e38])

    def work(rank: int) -> None:
        for synchronizer in synchronizers([strategy_of(name, HOSTS[2]) for name in WAYS]):
            tensor = special if rank == 0 else torch.tensor([-0.0, -0.0, TINY, 1.0, float("-inf"), 1.0, 3e38])
            tensor = tensor.clone()
            synchronizer.all_reduce(tensor).wait()
            wanted = torch.tensor([0.0, -0.0, 2 * TINY, float("inf"), float("nan"), float("nan"), float("inf")])
            torch.testing.assert_close(tensor, wanted, rtol=0, atol=0, equal_nan=True)

    on_ranks(2, work)


def test_servers_apart_sum_for_workers_until_they_are_dismissed() -> None:
    way = ParameterServer(ranks=(1, 3, 4), servers=(0, 2), chunk_bytes=256)

    def work(rank: int) -> Any:
        (synchronizer,) = synchronizers([way])
        if rank in way.servers:
            return way.serve(synchronizer.collectives)
        found = []
        for size in SIZES:
            tensor = numbers(rank, size)
            synchronizer.all_reduce(tensor).wait()
            wanted = torch.stack([numbers(worker, size) for worker in way.ranks]).sum(0)
            torch.testing.assert_close(tensor, wanted, rtol=1e-12, atol=1e-12)
            found.append(bits(tensor))
        synchronizer.close()
        return found

    served, first, also_served, second, third = on_ranks(5, work)
    assert served == also_served == len(SIZES)
    assert first == second == third


@pytest.mark.parametrize("name", WAYS)
def test_a_rank_that_does_not_come_is_missed_in_time_by_name(name: str) -> None:
    def work(rank: int) -> str:
        (synchronizer,) = synchronizers([strategy_of(name, HOSTS[4])], limit=2.5)
        if rank == 3:
            return ""
        future = synchronizer.all_reduce(torch.ones(50_000), "s0.7")
        with pytest.raises(SumFailed) as caught:
            future.wait()
        again = synchronizer.all_reduce(torch.ones(5))  # neither does what comes behind it hang
        with pytest.raises(SumFailed):
            again.wait()
        return str(caught.value)

    *present, _ = on_ranks(4, work, seconds=40.0)
    for rank, message in enumerate(present):
        assert message.startswith(f"rank {rank} could not sum s0.7 (50,000 elements) over ranks 0..3 by {name}: ")


def test_what_cannot_be_summed_is_refused_with_the_way_out() -> None:
    def work(rank: int) -> None:
        (synchronizer,) = synchronizers([strategy_of("ring", HOSTS[2])])
        with pytest.raises(PlaitError, match=r"shape \(2, 3\).*view\(-1\)"):
            synchronizer.all_reduce(torch.zeros(2, 3))
        with pytest.raises(PlaitError, match=r"cannot sum torch.int64; it takes float32, bfloat16"):
            synchronizer.all_reduce(torch.zeros(3, dtype=torch.int64))

    on_ranks(2, work)


def test_an_unknown_way_is_refused_with_those_there_are() -> None:
    with pytest.raises(PlaitError, match="'gossip'; choose one of ring, hierarchical, parameter-server"):
        strategy_of("gossip", HOSTS[2])


def test_one_rank_alone_has_its_sum() -> None:
    def work(rank: int) -> None:
        (synchronizer,) = synchronizers([strategy_of("ring", [(0,)])])
        assert synchronizer.all_reduce(torch.ones(3)).done()

    on_ranks(1, work)
