"""Synchronizers in a script of one's own, most of all under DistributedDataParallel."""

import hashlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # DistributedDataParallel wants it: once for all ranks that are forked from here
import torch.distributed as dist
from forked import LIMIT, RankError, on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import plait.sync
from plait.errors import PlaitError
from plait.switch import native
from plait.switch.daemon import Switch
from plait.sync import SumFailed, Synchronizer, strategy_of
from plait.sync.conveyor import Conveyor, Job

KEY = "a key"
FORK = multiprocessing.get_context("fork")
needs_switch = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))


@pytest.fixture
def switch() -> Iterator[str]:
    with Switch(key=KEY) as daemon:
        yield "{}:{}".format(*daemon.address)


def two_hosts(rank: int) -> None:
    os.environ["PLAIT_HOST"] = f"host{rank // 2}"


WAYS: dict[str, Callable[[], Synchronizer]] = {
    "ring": plait.sync.ring,
    "hierarchical": plait.sync.hierarchical,
    "parameter-server": plait.sync.parameter_server,
    "sharded": lambda: plait.sync.parameter_server(servers=range(4)),
}


def model(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 1)).to(dtype)


def gradients(module: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.view(-1) for parameter in module.parameters() if parameter.grad is not None])


def whole(dtype: torch.dtype) -> Tensor:
    alone = model(dtype)
    alone(batch(dtype)).square().mean().backward()
    return gradients(alone)


def batch(dtype: torch.dtype) -> Tensor:
    return torch.randn(16, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def averaged(way: Synchronizer, rank: int, dtype: torch.dtype, **options: Any) -> Tensor:
    """What DistributedDataParallel makes of four ranks' gradients, the second of two times."""
    module = DistributedDataParallel(model(dtype), bucket_cap_mb=0.004, **options)
    module.register_comm_hook(way, plait.sync.hook)
    for _ in range(2):  # buckets are made anew after the first
        module.zero_grad()
        module(batch(dtype)[4 * rank : 4 * rank + 4]).square().mean().backward()
    return gradients(module)


def test_distributed_data_parallel_averages() -> None:
    def work(rank: int) -> None:
        two_hosts(rank)
        for make in WAYS.values():
            for as_views in (False, True):
                way = make()
                found = averaged(way, rank, torch.float64, gradient_as_bucket_view=as_views)
                torch.testing.assert_close(found, whole(torch.float64), rtol=1e-12, atol=1e-14)
                way.close()

    on_ranks(4, work)


@needs_switch
@pytest.mark.parametrize("make", [plait.sync.passing, plait.sync.in_network], ids=["passing", "in-network"])
def test_distributed_data_parallel_averages_by_a_switch(make: Any, switch: str) -> None:
    def work(rank: int) -> list[float]:
        two_hosts(rank)
        way = make(switch, key=KEY)
        found = averaged(way, rank, torch.float32)
        torch.testing.assert_close(found.double(), whole(torch.float64), rtol=1e-5, atol=1e-7)
        way.close()
        return found.tolist()

    first, *others = on_ranks(4, work)
    assert all(other == first for other in others)


@needs_switch
def test_large_sums_by_a_switch_are_as_near_as_they_must_be(switch: str) -> None:
    size, hosts, largest = 3_000_017, 2, 12.0  # of what a host sums, by far

    def work(rank: int) -> str:
        two_hosts(rank)
        parts = [torch.randn(size, generator=torch.Generator().manual_seed(other)) for other in range(4)]
        way = plait.sync.passing(switch, key=KEY, mean=False)
        tensor = parts[rank].clone()
        way.all_reduce(tensor).wait()
        exact = torch.stack(parts).double().sum(0)
        assert (tensor.double() - exact).abs().max() <= 2**-20 * hosts * largest
        way.close()
        return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()

    assert len(set(on_ranks(4, work))) == 1


@needs_switch
def test_a_switch_that_ends_in_mid_training_costs_nothing_but_time() -> None:
    with Switch(key=KEY) as daemon:
        address = "{}:{}".format(*daemon.address)

        reached, ended = FORK.Event(), FORK.Event()

        def end() -> None:
            reached.wait(LIMIT)
            daemon.close()
            ended.set()

        def work(rank: int) -> int:
            two_hosts(rank)
            way = plait.sync.passing(address, key=KEY, mean=False)
            for number in range(8):
                tensor = torch.full((100_000,), float(rank + number))
                way.all_reduce(tensor).wait()
                assert torch.equal(tensor, torch.full((100_000,), 6.0 + 4 * number))
                assert way.strategy.turns.attempt == (number > 3)  # type: ignore[attr-defined]
                if number == 3:
                    reached.set()
                    assert ended.wait(LIMIT)
            return number

        threading.Thread(target=end, daemon=True).start()
        assert on_ranks(4, work) == [7] * 4


def test_the_future_is_not_done_before_the_sum_is() -> None:
    """DistributedDataParallel takes a bucket as it is when its future is done: too early is silently wrong."""

    def work(rank: int) -> None:
        two_hosts(rank)
        way = plait.sync.hierarchical()
        add = way._conveyor.add

        def late(job: Job) -> None:
            last = job.chunks[-1]
            job.chunks[-1] = (*last[:-1], lambda: (time.sleep(0.3), last[-1]()))  # type: ignore[index]
            add(job)

        way._conveyor.add = late  # type: ignore[method-assign]
        found = averaged(way, rank, torch.float64)
        torch.testing.assert_close(found, whole(torch.float64), rtol=1e-12, atol=1e-14)

    on_ranks(4, work)


def test_a_rank_that_is_gone_fails_the_backward_with_words() -> None:
    def work(rank: int) -> str:
        two_hosts(rank)
        way = plait.sync.hierarchical(timeout_seconds=2.5)
        module = DistributedDataParallel(model(torch.float64))
        module.register_comm_hook(way, plait.sync.hook)
        if rank == 3:
            return ""
        with pytest.raises(RuntimeError) as caught:
            module(batch(torch.float64)).square().mean().backward()
        return str(caught.value)

    *messages, _ = on_ranks(4, work, seconds=30.0)
    for rank, message in enumerate(messages):
        assert f"rank {rank} could not sum bucket 0 (3,341 elements) over ranks 0..3 by hierarchical" in message


def test_a_synchronizer_that_sums_is_refused_as_a_hook() -> None:
    def work(rank: int) -> None:
        module = DistributedDataParallel(model(torch.float64))
        module.register_comm_hook(plait.sync.ring(mean=False), plait.sync.hook)
        module(batch(torch.float64)).square().mean().backward()

    with pytest.raises(RankError, match="leave mean=False out"):
        on_ranks(2, work)


def test_servers_apart_serve_training() -> None:
    def work(rank: int) -> int:
        workers = dist.new_group([0, 1, 2])
        if rank == 3:
            return plait.sync.serve([3])
        way = plait.sync.parameter_server(servers=[3], apart=True)
        module = DistributedDataParallel(model(torch.float64), process_group=workers)
        module.register_comm_hook(way, plait.sync.hook)
        module(batch(torch.float64)[5 * rank : 5 * rank + 5]).square().mean().backward()
        alone = model(torch.float64)
        alone(batch(torch.float64)[:15]).square().mean().backward()
        torch.testing.assert_close(gradients(module), gradients(alone), rtol=1e-12, atol=1e-14)
        way.close()
        return 0

    assert on_ranks(4, work) == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plait.sync.passing("nowhere", key=KEY), "'nowhere' is no address .* HOST:PORT"),
        (lambda: plait.sync.passing("10.0.0.1:7077", key=""), "passing sums are off, for rank 0 says: .* job key"),
        (
            lambda: plait.sync.parameter_server(servers=[5]),
            r"servers \[5\] must be .* ranks of 0..0",
        ),
        (lambda: plait.sync.parameter_server(servers=[0], apart=True), "nobody trains"),
    ],
)
def test_bad_arguments_are_refused(make: Any, message: str) -> None:
    def work(rank: int) -> None:
        with pytest.raises(PlaitError, match=message):
            make()

    on_ranks(1, work)


@pytest.mark.parametrize("name", ["in-network", "passing"])
def test_ranks_of_one_host_need_no_switch(name: str) -> None:
    assert strategy_of(name, [(0, 1, 2)], place=None).name == "ring"
    with pytest.raises(PlaitError, match=rf"{name} sums are off: no aggregating switch is named: set PLAIT_SWITCH"):
        strategy_of(name, [(0, 1), (2,)], place=None)


def test_sums_behind_one_that_failed_fail_at_once() -> None:
    conveyor, ends = Conveyor(2), list[Exception | None]()

    def fail() -> None:
        raise OSError("gone")

    for chunk in ((fail, fail), (lambda: None, lambda: None)):
        conveyor.add(Job([chunk], ends.append))
    deadline = time.monotonic() + 5.0
    while len(ends) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [str(end) for end in ends] == ["gone", "gone"]
    assert SumFailed(3, "x", ends[0] or OSError()).rank == 3
