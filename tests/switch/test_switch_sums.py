"""Sums over an aggregating switch on this machine: exact as promised, the same on every worker."""

import math

import pytest
import torch
from switch_help import joined, on_all
from torch import Tensor

from plait.errors import PlaitError
from plait.switch.daemon import Switch

ERROR = 2.0**-20  # of the block's largest summand, for each worker


def summands(count: int, size: int, *, seed: int = 0) -> list[Tensor]:
    """Blocks of very different magnitudes, as gradients of different layers have."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-30, 30, (size // 1000 + 1,), generator=generator).repeat_interleave(1000)[:size]
    return [torch.randn(size, generator=generator) * 2.0**exponents for _ in range(count)]


def check(values: list[Tensor], found: list[Tensor], elements: int) -> None:
    assert all(torch.equal(found[0], other) for other in found[1:]), "workers have different sums"
    exact = torch.stack([value.double() for value in values]).sum(0)
    for start in range(0, len(exact), elements):
        block = slice(start, start + elements)
        largest = max(value[block].abs().max().item() for value in values)
        error = (found[0][block].double() - exact[block]).abs().max().item()
        assert error <= ERROR * largest * len(values)


@pytest.mark.parametrize(
    ("count", "size"), [(1, 5), (2, 1), (2, 17), (3, 2225), (4, 100_003), (8, 300_001), (5, 2224 * 64)]
)
def test_the_sum_is_within_its_bound_and_the_same_everywhere(switch: Switch, count: int, size: int) -> None:
    workers, values = joined(switch, count), summands(count, size)
    tensors = [value.clone() for value in values]
    assert on_all(count, lambda n: workers[n].all_reduce(tensors[n])) == [None] * count
    check(values, tensors, workers[0].elements)


@pytest.mark.slow
def test_ten_million_values(switch: Switch) -> None:
    workers, values = joined(switch, 4), summands(4, 10_000_001)
    tensors = [value.clone() for value in values]
    assert on_all(4, lambda n: workers[n].all_reduce(tensors[n])) == [None] * 4
    check(values, tensors, workers[0].elements)


def test_one_tensor_after_the_other_of_any_size(switch: Switch) -> None:
    workers = joined(switch, 3, slots=4)
    sizes = [1, 50_000, 3, 8896, 0, 2224 * 9 + 1, 20_000]
    values = [summands(3, size, seed=size) for size in sizes]

    def run(number: int) -> list[Tensor]:
        found = [value[number].clone() for value in values]
        for tensor in found:
            workers[number].all_reduce(tensor)
        return found

    for value, found in zip(values, zip(*on_all(3, run), strict=True), strict=True):
        if len(value[0]):
            check(value, list(found), workers[0].elements)


def test_what_is_not_finite_arrives_as_in_a_sum_of_floats(switch: Switch) -> None:
    infinity, size = math.inf, 2224 * 90
    columns = {
        0: (infinity, 1.0, 1.0),
        1: (infinity, -infinity, 1.0),
        2: (math.nan, 0.0, infinity),
        3: (-infinity, -infinity, 2.0),
        2224 * 70: (infinity, 0.0, 0.0),
        2224 * 89 + 7: (1.0, math.nan, 1.0),
    }
    values = summands(3, size)
    for place, column in columns.items():
        for value, entry in zip(values, column, strict=True):
            value[place] = entry
    tensors, workers = [value.clone() for value in values], joined(switch, 3)
    assert on_all(3, lambda n: workers[n].all_reduce(tensors[n])) == [None] * 3
    floats = values[0] + values[1] + values[2]
    places = ~torch.isfinite(floats)
    assert int(places.sum()) == len(columns)
    for tensor in tensors:
        assert torch.equal(torch.isfinite(tensor), ~places)
        assert torch.equal(tensor[places].nan_to_num(7.0), floats[places].nan_to_num(7.0))
    rest = [value.masked_fill(places, 0.0) for value in values]
    check(rest, [tensor.masked_fill(places, 0.0) for tensor in tensors], workers[0].elements)


def test_a_sum_too_large_for_a_float_is_infinite(switch: Switch) -> None:
    tensors, workers = [torch.full((3,), -3e38) for _ in range(2)], joined(switch, 2)
    assert on_all(2, lambda n: workers[n].all_reduce(tensors[n])) == [None] * 2
    assert all(tensor.tolist() == [-math.inf] * 3 for tensor in tensors)


def test_zeros_and_denormal_numbers_are_exact(switch: Switch) -> None:
    smallest = 2.0**-149
    values = [torch.randint(-99, 99, (5000,)).float() * smallest for _ in range(3)]
    for value in values:
        value[2224:4448] = 0.0
    tensors, workers = [value.clone() for value in values], joined(switch, 3)
    assert on_all(3, lambda n: workers[n].all_reduce(tensors[n])) == [None] * 3
    assert all(torch.equal(tensor, values[0] + values[1] + values[2]) for tensor in tensors)


def test_with_out_a_tensor_keeps_its_own_values(switch: Switch) -> None:
    workers, values = joined(switch, 2), summands(2, 3000)
    before, sums = [value.clone() for value in values], [torch.empty(3000) for _ in range(2)]
    assert on_all(2, lambda n: workers[n].all_reduce(values[n], out=sums[n])) == [None] * 2
    check(before, sums, workers[0].elements)
    assert all(torch.equal(value, own) for value, own in zip(values, before, strict=True))


def test_two_jobs_share_a_switch(switch: Switch) -> None:
    jobs = [joined(switch, count, job=f"job of {count}") for count in (2, 3)]
    values = [summands(2, 200_000), summands(3, 150_000, seed=1)]
    tensors = [[value.clone() for value in own] for own in values]
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]

    def run(number: int) -> None:
        job, worker = places[number]
        for _ in range(3):
            tensors[job][worker].copy_(values[job][worker])
            jobs[job][worker].all_reduce(tensors[job][worker])

    assert on_all(5, run) == [None] * 5
    for job in range(2):
        check(values[job], tensors[job], jobs[job][0].elements)
    status = switch.status()
    assert sorted(job["name"] for job in status["jobs"]) == ["job of 2", "job of 3"]
    assert status["free_slots"] == status["slots"] - sum(workers[0].slots for workers in jobs)


@pytest.mark.parametrize(
    "tensor", [torch.zeros(3, dtype=torch.float64), torch.zeros(4, 4).t()[:2], torch.zeros(2, device="meta")]
)
def test_tensors_that_cannot_be_summed_are_refused(switch: Switch, tensor: Tensor) -> None:
    with joined(switch, 1)[0] as worker, pytest.raises(PlaitError, match="contiguous float32"):
        worker.all_reduce(tensor)
