"""Rows divided: a batch into micro-batches, a micro-batch over replicas."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from plait.plan import micro_batch_sizes, split_rows

shares = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)


@given(st.integers(0, 10_000), shares)
def test_a_split_covers_all_rows_once_and_in_order(rows, shares):
    spans = split_rows(rows, shares)
    assert len(spans) == len(shares)
    assert spans[0][0] == 0
    assert spans[-1][1] == rows
    assert all(first <= last for first, last in spans)
    assert all(before[1] == after[0] for before, after in pairwise(spans))


@given(st.integers(0, 10_000), shares)
def test_everybody_gets_its_share_to_within_one_row(rows, shares):
    for (first, last), share in zip(split_rows(rows, shares), shares, strict=True):
        assert abs((last - first) - rows * share / sum(shares)) <= 1 + 1e-6


@given(st.integers(1, 12), st.integers(1, 1000))
def test_equal_shares_differ_by_at_most_one_row(replicas, rows):
    sizes = [last - first for first, last in split_rows(rows, [1.0] * replicas)]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 12), st.integers(0, 100))
def test_with_a_row_for_each_nobody_goes_without(replicas, more):
    assert all(last > first for first, last in split_rows(replicas + more, [1.0] * replicas))


@given(shares, st.integers(0, 1000), st.floats(0.1, 10))
def test_only_the_ratio_of_shares_matters(shares, rows, factor):
    scaled = split_rows(rows, [share * factor for share in shares])
    for a, b in zip(split_rows(rows, shares), scaled, strict=True):
        assert abs(a[0] - b[0]) <= 1  # at a tie, rounding may fall either way


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 8))
def test_micro_batches_add_up_to_the_batch_and_differ_by_at_most_one_row(rows, micro_batches, smallest):
    sizes = micro_batch_sizes(rows, micro_batches, smallest)
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 8))
def test_a_short_batch_makes_fewer_micro_batches_rather_than_too_small_ones(rows, micro_batches, smallest):
    sizes = micro_batch_sizes(rows, micro_batches, smallest)
    assert len(sizes) == micro_batches or len(sizes) < micro_batches
    assert min(sizes) >= min(smallest, rows)
    if rows >= micro_batches * smallest:
        assert len(sizes) == micro_batches
