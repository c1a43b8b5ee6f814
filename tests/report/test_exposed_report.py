"""The table of exposed communication and the sentences below it."""

from rich.console import Console

from plait.program import Instruction, Op
from plait.report import exposed_data, exposed_note, exposed_rows, exposed_table, exposed_warning, run_report
from plait.simulate import Record, Timeline, exposures

F0, F1, B0, B1 = (Instruction(op, 0, m, first_row=0, last_row=1) for op in (Op.F, Op.B) for m in (0, 1))
SUM, AWAIT = Instruction(Op.REDUCE, name="s0.1"), Instruction(Op.AWAIT, name="s0.1")


def replicas(*, start: float, end: float, source: str = "simulated", step: float = 10.0) -> Timeline:
    """Two of them: two micro-batches until 6, and a sum from `start` to `end`."""
    computed = ((F0, 0.0, 1.0), (B0, 1.0, 3.0), (F1, 3.0, 4.0), (B1, 4.0, 6.0))
    records: list[Record] = []
    for rank in (0, 1):
        records += [(rank, "compute", *computation) for computation in computed]
        records += [(rank, "reduce", SUM, start, end), (rank, "wait", AWAIT, 6.0, end)]
    return Timeline(source, 2, tuple(records), step)


def pipeline(*, wait: tuple[Instruction, float, float]) -> Timeline:
    computed = ((F0, 0.0, 1.0), (F1, 1.0, 2.0), (B0, 6.0, 8.0), (B1, 8.0, 10.0))
    records = [(0, "compute", *computation) for computation in computed]
    return Timeline("measured", 1, (*records, (0, "wait", *wait)), 10.0)


def test_ranks_that_read_the_same_share_a_row() -> None:
    header, row = exposed_rows([replicas(start=6, end=8)])
    assert header == ("", "rank", "gradient", "hideable")
    assert row == ("simulated", "0-1", "2 s 20%", "2 s 20%")


def test_predicted_stands_above_measured() -> None:
    rows = exposed_rows([replicas(start=6, end=8), replicas(start=6, end=9, source="measured")])
    assert [row[0] for row in rows[1:]] == ["simulated", "measured"]
    assert exposed_table(rows).row_count == 2
    assert len(exposed_table(rows).columns) == 4
    assert len(exposed_table(rows[:2]).columns) == 3


def test_eighty_columns_hold_every_cause() -> None:
    waits = (AWAIT, Instruction(Op.AWAIT, name="tied.0"), F0, Instruction(Op.LOSS))
    records = tuple((0, "wait", what, n * 12.34e-3, (n + 1) * 12.34e-3) for n, what in enumerate(waits))
    timelines = [Timeline(source, 1000, records, 0.1) for source in ("simulated", "emulated")]
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(exposed_table(exposed_rows(timelines)))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    assert sum(line.count("12.3 ms") for line in lines) == 2 * 4


def test_nothing_exposed_is_no_table_and_no_sentence() -> None:
    timeline = replicas(start=4, end=6)
    assert exposed_rows([timeline]) == []
    assert exposed_warning(timeline) == exposed_note(timeline) == ""


def test_of_many_ranks_those_that_wait_the_most_are_shown() -> None:
    records = tuple((rank, "wait", AWAIT, 0.0, float(rank)) for rank in range(10))
    rows = exposed_rows([Timeline("simulated", 10, records, 10.0)], most=3)
    assert [row[1] for row in rows[1:]] == ["7", "8", "9", "7 more"]


def test_sums_beside_no_computation_say_that_overlap_is_off() -> None:
    warning = exposed_warning(replicas(start=6, end=8))
    assert "rank 0 waits 2 s of a step of 10 s" in warning and "2 s could be hidden" in warning
    assert "overlap is off" in warning and "--overlap full" in warning


def test_sums_awaited_at_the_end_name_their_bucket_and_could_go_on_in_the_next_step() -> None:
    warning = exposed_warning(replicas(start=5, end=8))
    assert "bucket s0.1 is awaited when everything is computed" in warning and "--overlap full" in warning


def test_sums_that_a_forward_needs_at_once_ask_for_smaller_buckets() -> None:
    records: list[Record] = [
        (0, "wait", AWAIT, 0.0, 3.0),
        *(
            (0, "compute", *computation)
            for computation in ((F0, 3.0, 4.0), (B0, 4.0, 5.0), (F1, 5.0, 6.0), (B1, 6.0, 10.0))
        ),
        (0, "reduce", SUM, 9.0, 13.0),
    ]
    warning = exposed_warning(Timeline("simulated", 1, tuple(records), 10.0))
    assert "bucket s0.1 is needed as soon as its gradients are there" in warning and "Smaller buckets" in warning


def test_a_tenth_of_the_step_is_not_worth_a_warning() -> None:
    assert exposed_warning(replicas(start=6, end=8, step=20.0)) == ""


def test_a_link_slower_than_the_computation_is_a_note_rather_than_a_warning() -> None:
    timeline = replicas(start=1, end=16, step=16.0)
    assert exposed_warning(timeline) == ""  # the first forward is all that has nothing beside it
    assert "10 s of rank 0's wait" not in exposed_note(timeline)
    assert "9 s of rank 0's wait for gradient sums cannot be hidden: they take 15 s" in exposed_note(timeline)
    assert "computed meanwhile takes 6 s" in exposed_note(timeline)


def test_messages_are_hidden_by_more_micro_batches() -> None:
    assert "More micro-batches" in exposed_warning(pipeline(wait=(B0, 4.0, 6.0)))


def test_an_empty_pipeline_cannot_hide_its_first_message() -> None:
    timeline = Timeline("measured", 1, ((0, "wait", F0, 0.0, 4.0), (0, "compute", F0, 4.0, 10.0)), 10.0)
    assert exposed_warning(timeline) == ""
    assert "fill and empty the pipeline" in exposed_note(timeline)


def test_programs_read_seconds_by_cause() -> None:
    data = exposed_data(exposures(replicas(start=6, end=8))[0])
    assert data == {"exposed_seconds": {"gradient": 2.0}, "hideable_seconds": {"gradient": 2.0}}


def test_the_report_has_the_table() -> None:
    timelines = [replicas(start=6, end=8)]
    rows = exposed_rows(timelines)
    page = run_report("job", facts={}, timelines=timelines, stages=[["stage"]], losses=[], exposed=rows)
    assert "<h2>Exposed communication</h2>" in page and "<td>2 s 20%</td>" in page
