"""Between two stages every row travels once, however they are replicated."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from plait.graph import Value
from plait.plan import split_rows
from plait.program.messages import transfers

shares = st.lists(st.sampled_from([0.1, 1.0, 1.0, 2.5]), min_size=1, max_size=5)


def value(batch_dim: int | None) -> Value:
    return Value("v", 0, (1,), (1, 4), "float32", batch_dim, True)


@given(st.integers(1, 40), shares, shares)
def test_every_row_goes_once_from_who_has_it_to_who_needs_it(rows, senders, receivers):
    have, need = split_rows(rows, senders), split_rows(rows, receivers)
    travelled: Counter[int] = Counter()
    for sender, receiver, (first, last) in transfers(value(0), have, need):
        assert have[sender][0] <= first < last <= have[sender][1]
        assert need[receiver][0] <= first < last <= need[receiver][1]
        travelled.update(range(first, last))
    assert travelled == Counter(range(rows))


@given(st.integers(1, 40), shares, shares)
def test_a_value_without_rows_goes_whole_to_everybody_who_works(rows, senders, receivers):
    have, need = split_rows(rows, senders), split_rows(rows, receivers)
    found = list(transfers(value(None), have, need))
    assert [(r, rows) for _, r, rows in found] == [(r, span) for r, span in enumerate(need) if span[1] > span[0]]
    assert all(have[sender][1] > have[sender][0] for sender, _, _ in found)
