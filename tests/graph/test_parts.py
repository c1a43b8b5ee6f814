"""Parts of tensors: what devices take of a whole one makes the whole again, however the dimension is seen."""

import threading

import torch
from hypothesis import given
from hypothesis import strategies as st
from shared_runner import Meeting, ThreadGroup

from plait.graph.sharding import split_sizes
from plait.graph.sharding.collectives import gather, take_part


@given(st.integers(0, 100), st.integers(1, 9))
def test_sizes_are_even_and_complete(size: int, parts: int) -> None:
    sizes = split_sizes(size, parts)
    assert sum(sizes) == size and len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1 and list(sizes) == sorted(sizes, reverse=True)


@given(st.integers(1, 3), st.integers(2, 6), st.integers(1, 3), st.integers(2, 4), st.integers(0, 2))
def test_parts_make_the_whole_again(sections: int, cells: int, unit: int, degree: int, dim: int) -> None:
    degree = min(degree, cells)
    shape = [2, 3, 2]
    shape[dim] = sections * cells * unit
    whole = torch.arange(2 * 3 * 2 * sections * cells * unit // [2, 3, 2][dim] * 1.0).reshape(shape)
    parts = [take_part(index, degree, whole, dim, cells, unit) for index in range(degree)]
    assert sum(part.numel() for part in parts) == whole.numel()
    meeting, found = Meeting(degree), {}

    def work(index: int) -> None:
        found[index] = gather(ThreadGroup(meeting, index), parts[index], dim, cells, unit)

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(degree)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(torch.equal(found[index], whole) for index in range(degree))
