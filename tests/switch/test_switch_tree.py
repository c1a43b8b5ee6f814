"""Switches below a switch: the sums are those of all workers together."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch
from switch_help import KEY, joined, on_all
from test_switch_faults import within
from test_switch_sums import check, summands

from plait.switch.daemon import Switch
from plait.switch.faults import Faults
from plait.switch.roster import Parent
from plait.switch.worker import SwitchUnavailable, SwitchWorker

RACKS = (2, 3)  # workers in each


@contextmanager
def tree(faults: Faults | None = None) -> Iterator[tuple[Switch, list[Switch]]]:
    with ExitStack() as stack:
        spine = stack.enter_context(Switch(key=KEY, faults=faults))
        parents = [Parent(spine.address, rack, len(RACKS)) for rack in range(len(RACKS))]
        yield spine, [stack.enter_context(Switch(key=KEY, faults=faults, parent=parent)) for parent in parents]


def join_tree(racks: list[Switch], **options: float) -> list[SwitchWorker]:
    """All racks at once, since none begins before the others."""
    joining = on_all(len(racks), lambda rack: joined(racks[rack], RACKS[rack], **options))
    assert all(isinstance(workers, list) for workers in joining), joining
    return [worker for workers in joining for worker in workers]


@pytest.mark.parametrize(
    "faults", [None, Faults(loss=0.02, seed=5), Faults(loss=0.01, duplicate=0.05, reorder=0.05, seed=6)], ids=str
)
def test_sums_of_all_racks_are_exact_and_the_same_everywhere(faults: Faults | None) -> None:
    with tree(faults) as (spine, racks):
        workers, count = join_tree(racks), sum(RACKS)
        sizes = (1, 300_000, 5000)
        values = [summands(count, size, seed=size) for size in sizes]
        values[1][4][77] = torch.inf
        tensors = [[value.clone() for value in own] for own in values]

        def run(number: int) -> None:
            for own in tensors:
                workers[number].all_reduce(own[number])

        assert on_all(count, run) == [None] * count
        packets = spine.status()["counters"]["summed"]
    assert all(tensor[77] == torch.inf for tensor in tensors[1])
    for own in (*values[1], *tensors[1]):
        own[77] = 0.0
    for own, found in zip(values, tensors, strict=True):
        check(own, found, workers[0].elements)
    chunks = sum(1 + -(-size // workers[0].elements) for size in sizes) + 1  # and one block with an infinity
    assert packets == len(RACKS) * chunks, "racks send up one packet for all their workers"


def test_a_worker_that_ends_in_one_rack_is_named_in_the_other() -> None:
    with tree() as (_, racks):
        workers = join_tree(racks)
        workers[0]._channel.close()  # as the kernel does when its process ends
        with within(5.0), pytest.raises(SwitchUnavailable, match="worker 0"):
            workers[-1].all_reduce(torch.ones(10))
        with within(5.0), pytest.raises(SwitchUnavailable, match="worker 0 ended without leaving"):
            workers[1].all_reduce(torch.ones(10))


def test_a_spine_that_ends(switch: Switch) -> None:
    with tree() as (spine, racks):
        workers = join_tree(racks)
        spine.close()
        with within(5.0):
            found = on_all(len(workers), lambda n: workers[n].all_reduce(torch.ones(10)))
    assert all(isinstance(error, SwitchUnavailable) for error in found)
    assert "switch above" in str(found[0])


def test_a_rack_waits_for_late_workers_of_another() -> None:
    with tree() as (_, racks):
        workers = join_tree(racks, silence_seconds=1.0)

        def run(number: int) -> None:
            if number == 4:
                time.sleep(2.0)
            workers[number].all_reduce(tensors[number])

        tensors = [torch.ones(10) for _ in workers]
        assert on_all(5, run) == [None] * 5
        assert all(tensor.eq(5.0).all() for tensor in tensors)
        for worker in workers:
            worker.close()
        assert all(isinstance(worker, SwitchWorker) for worker in join_tree(racks)), "all have left, and come again"
