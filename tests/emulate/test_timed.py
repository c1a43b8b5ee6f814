"""Stages that take their time and send their bytes."""

import time

import pytest

from plait.emulate.sleep import sleep_until
from plait.emulate.timed import Device, TimedBucket, shrunk
from plait.program import Bucket


def test_sleeping_ends_at_its_moment_and_not_before() -> None:
    late = []
    for _ in range(5):
        deadline = time.perf_counter() + 0.004
        late.append(sleep_until(deadline))
        assert time.perf_counter() >= deadline
    assert min(late) < 1e-3


def test_computations_that_follow_one_another_do_not_add_up_what_lies_between() -> None:
    device = Device()
    start = time.perf_counter()
    for _ in range(10):
        device.work(0.003)
        time.sleep(1e-4)
    assert time.perf_counter() - start >= 0.030
    assert len(device.lateness) == 10


def test_a_bucket_has_its_share_of_the_bytes() -> None:
    bucket = TimedBucket(Device(), Bucket("b", ("w",), 4000, (0, 1), ((0, 0),)), 0.0, payload=10.0)
    assert bucket.flat.numel() * bucket.flat.element_size() == 400


@pytest.mark.parametrize(("num_bytes", "payload", "left"), [(1000, 10.0, 100), (3, 10.0, 1), (1000, 1.0, 1000)])
def test_a_message_is_never_empty(num_bytes: int, payload: float, left: int) -> None:
    assert shrunk(num_bytes, payload) == left
