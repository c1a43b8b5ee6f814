"""Packets lost, doubled and out of order; switches and workers that end or never answer: a right sum, or
SwitchUnavailable within a bounded time."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from switch_help import KEY, joined, on_all
from test_switch_sums import check, summands

from plait.errors import PlaitError
from plait.switch.daemon import Switch
from plait.switch.faults import Faults
from plait.switch.worker import SwitchUnavailable, SwitchWorker


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


@pytest.mark.parametrize(
    "faults",
    [
        Faults(loss=0.01, seed=1),
        Faults(loss=0.05, seed=2),
        Faults(duplicate=0.2, seed=3),
        Faults(reorder=0.2, seed=4),
        Faults(loss=0.05, duplicate=0.05, reorder=0.05, seed=5),
    ],
    ids=str,
)
@pytest.mark.parametrize("slots", [4, 64])
def test_sums_are_right_over_a_bad_network(faults: Faults, slots: int) -> None:
    with Switch(key=KEY, faults=faults) as switch:
        workers = joined(switch, 3, slots=slots)
        values = [summands(3, size, seed=size) for size in (1, 300_000, 40_000)]
        tensors = [[value.clone() for value in own] for own in values]

        def run(number: int) -> None:
            for own in tensors:
                workers[number].all_reduce(own[number])

        assert on_all(3, run) == [None] * 3
        counters = switch.status()["counters"]
    for own, found in zip(values, tensors, strict=True):
        check(own, found, workers[0].elements)
    again = sum(worker.report.retransmitted for worker in workers) + counters["answered again"]
    if faults.loss:
        assert counters["lost on purpose"] and again
    elif faults.duplicate:
        assert again + counters["asked"] + counters["stale"]


def test_special_values_survive_loss() -> None:
    with Switch(key=KEY, faults=Faults(loss=0.05, seed=9)) as switch:
        workers, tensors = joined(switch, 2), [torch.ones(400_000) for _ in range(2)]
        for block in range(0, 400_000, 5000):
            tensors[block % 2][block] = torch.inf
        assert on_all(2, lambda n: workers[n].all_reduce(tensors[n])) == [None] * 2
    expected = torch.full((400_000,), 2.0)
    expected[::5000] = torch.inf
    assert all(torch.equal(tensor, expected) for tensor in tensors)


def test_a_switch_that_never_answers() -> None:
    with Switch(key=KEY, faults=Faults(loss=0.999999)) as deaf:
        workers = joined(deaf, 2, silence_seconds=0.5)
        tensors = [torch.arange(10.0) for _ in range(2)]
        with within(5.0):
            found = on_all(2, lambda n: workers[n].all_reduce(tensors[n]))
    assert all(isinstance(error, SwitchUnavailable) for error in found)
    assert "has not answered for 0.5 s" in str(found[0])
    assert all(torch.equal(tensor, torch.arange(10.0)) for tensor in tensors)
    with pytest.raises(SwitchUnavailable, match="has not answered"):
        workers[0].all_reduce(tensors[0])  # at once, with the same reason


def test_a_switch_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(SwitchUnavailable, match="cannot be reached"), within(5.0):
        SwitchWorker(address, job="job", key=KEY, worker=0, count=1)


def test_something_else_that_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = mute.getsockname()
        with within(5.0), pytest.raises(SwitchUnavailable, match="did not answer"):
            SwitchWorker(address, job="job", key=KEY, worker=0, count=1, timeout_seconds=0.5)


def test_a_switch_restarted_in_mid_bucket() -> None:
    size = 60_000_000
    with Switch(key=KEY) as switch:
        ports = switch.address[1], switch.data_port
        workers = joined(switch, 2)
        tensors = [torch.ones(size) for _ in range(2)]

        def run(number: int) -> None:
            if number == 2:
                while switch.status()["counters"]["completed"] < 1000:
                    time.sleep(0.001)
                switch.close()
            else:
                workers[number].all_reduce(tensors[number])

        with within(20.0):
            found = on_all(3, run)
    assert all(isinstance(error, SwitchUnavailable) for error in found[:2]), found
    assert "ending" in str(found[0]) or "restarted" in str(found[0])
    assert all(tensor.eq(1.0).all() for tensor in tensors), "a tensor was touched"
    for worker in workers:
        worker.close()
    with Switch(key=KEY, control_port=ports[0], data_port=ports[1]) as again:
        workers, values = joined(again, 2), summands(2, 10_000)
        tensors = [value.clone() for value in values]
        assert on_all(2, lambda n: workers[n].all_reduce(tensors[n])) == [None] * 2
        check(values, tensors, workers[0].elements)


KILLED = f"""
import sys, torch
from plait.switch.worker import SwitchWorker
worker = SwitchWorker(("127.0.0.1", int(sys.argv[1])), job="job", key={KEY!r}, worker=1, count=2)
print("joined", flush=True)
while True:
    worker.all_reduce(torch.ones(100_000))
"""


def test_a_killed_worker_and_a_new_job_on_the_same_slots() -> None:
    with Switch(key=KEY, slots=64) as switch:
        words = [sys.executable, "-c", KILLED, str(switch.address[1])]
        victim = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            survivor = SwitchWorker(switch.address, job="job", key=KEY, worker=0, count=2)
            tensor = torch.zeros(100_000)
            for _ in range(5):
                survivor.all_reduce(tensor.zero_())
            assert tensor.eq(1.0).all()
            victim.kill()
            victim.wait()
            with within(5.0), pytest.raises(SwitchUnavailable, match="worker 1 ended without leaving"):
                while True:
                    survivor.all_reduce(tensor.zero_())
            assert tensor.eq(0.0).all()
        finally:
            victim.kill()
            victim.communicate()
        workers, values = joined(switch, 2), summands(2, 400_000)  # all slots of the switch
        tensors = [value.clone() for value in values]
        assert on_all(2, lambda n: workers[n].all_reduce(tensors[n])) == [None] * 2
        check(values, tensors, workers[0].elements)
        survivor.close()


def test_who_does_not_come_is_named(switch: Switch) -> None:
    workers = joined(switch, 3, timeout_seconds=0.6)
    tensor = torch.ones(5)
    with within(5.0), pytest.raises(SwitchUnavailable, match="workers 1, 2 did not contribute"):
        workers[0].all_reduce(tensor)
    assert tensor.eq(1.0).all()


def test_who_has_left_is_named_at_once(switch: Switch) -> None:
    workers = joined(switch, 2)
    workers[1].close()
    with within(5.0), pytest.raises(SwitchUnavailable, match="worker 1 left"):
        workers[0].all_reduce(torch.ones(5))


def test_leaving_does_not_take_the_last_result_from_others() -> None:
    with Switch(key=KEY, faults=Faults(loss=0.3, seed=3)) as switch:
        for _ in range(2):
            workers, tensors = joined(switch, 3), [torch.ones(30_000) for _ in range(3)]

            def run(number: int, workers: list = workers, tensors: list = tensors) -> None:
                workers[number].all_reduce(tensors[number])
                workers[number].close()

            assert on_all(3, run) == [None] * 3
            assert all(tensor.eq(3.0).all() for tensor in tensors)


def test_tensors_of_different_sizes(switch: Switch) -> None:
    workers = joined(switch, 2)
    with within(5.0):
        found = on_all(2, lambda n: workers[n].all_reduce(torch.ones(10 + n)))
    assert any("another size" in str(error) for error in found)
    assert all(isinstance(error, SwitchUnavailable) for error in found)


def test_shares_of_faults_are_checked() -> None:
    with pytest.raises(PlaitError, match="loss of 2"):
        Faults(loss=2.0)
