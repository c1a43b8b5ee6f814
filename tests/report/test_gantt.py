"""The chart in the terminal, as text: what it says must not need colours."""

import pytest
from test_pictures import timeline

from plait.program import Instruction, Op
from plait.report import gantt, legend
from plait.simulate import Span, Timeline


def rows(of: Timeline, **choices: float) -> list[str]:
    return gantt(of, **choices).plain.splitlines()


def pipeline(ranks: int, micro_batches: int, *, kinds: str = "FB", replicas: int = 1) -> Timeline:
    """Every rank does the micro-batches of its stage one after the other, a second each kind."""
    spans = [
        Span(rank, "compute", Instruction(Op(kind), rank // replicas, m, first_row=0, last_row=1), at, at + 1.0)
        for rank in range(ranks)
        for m in range(micro_batches)
        for place, kind in enumerate(kinds)
        for at in [float(m * len(kinds) + place)]
    ]
    return Timeline("simulated", ranks, tuple(spans), float(micro_batches * len(kinds)))


def test_a_row_per_rank_as_wide_as_asked() -> None:
    found = rows(timeline(), width=57)
    assert [len(row) for row in found] == [57, 57]
    assert found[0].startswith("rank 0 3>>>") and "~~~" in found[0] and "3<<<" in found[0]
    assert found[1].count("·") == 25


def test_timelines_share_an_axis() -> None:
    assert rows(timeline(), width=57, until=2.0)[1].endswith("·" * 25)


def test_blocks_too_narrow_for_numbers_have_none() -> None:
    (row,) = rows(pipeline(1, 40), width=87)
    assert row == "rank 0 " + "><" * 40


def test_halves_of_backwards_are_told_apart() -> None:
    (row,) = rows(pipeline(1, 2, kinds="FIW"), width=7 + 24)
    assert row == "rank 0 0>>>0iii0www1>>>1iii1www"


def test_stages_of_one_rank_have_two_shades() -> None:
    spans = tuple(
        Span(0, "compute", Instruction(Op.F, s, 0, first_row=0, last_row=1), t, t + 1.0)
        for t, s in enumerate((0, 4, 8))
    )
    text = gantt(Timeline("simulated", 1, spans, 3.0), width=37)
    styles = [str(span.style) for span in text.spans if "on" in str(span.style)]
    assert styles == [*["black on bright_blue"], *styles[1:10], *["black on blue"], *styles[11:20], *styles[20:]]
    assert styles[20] == styles[0]


def test_of_many_ranks_the_first_of_each_stage_is_shown() -> None:
    found = rows(pipeline(64, 2, replicas=8), width=80)
    assert [row.split()[1] for row in found] == [f"{8 * s}-{8 * s + 7}" for s in range(8)]


def test_of_many_stages_the_first_and_the_last_are_shown() -> None:
    found = rows(pipeline(64, 2), width=80, most_rows=16)
    assert len(found) == 17
    assert found[0].startswith("rank 0 ") and found[8].strip() == "⋮" and found[16].startswith("rank 63")


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (9, 3), (64, 33)])
@pytest.mark.parametrize("width", [12, 80, 200])
def test_no_row_is_wider_than_asked(ranks: int, micro_batches: int, width: int) -> None:
    assert max(map(len, rows(pipeline(ranks, micro_batches), width=width))) <= max(width, 20)


def test_the_legend_names_what_there_is_and_nothing_else() -> None:
    assert all(word in legend([timeline()]).plain for word in ("> forward", "< backward", "~ waiting", "· idle"))
    assert "half" not in legend([timeline()]).plain
    assert "i input half" in legend([pipeline(1, 1, kinds="FIW")]).plain
