"""The CSV form of PyTorch's pipelining: PyTorch reads what Plait writes, and Plait what PyTorch writes."""

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from schedule_strategies import line, pipelines
from torch.distributed.pipelining import schedules as pytorch

from plait.errors import PlaitError
from plait.schedule import make_schedule, positions_for, read_csv, write_csv

one_file = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def load_with_pytorch(path, positions, micro_batches):
    """PyTorch's runtime without stages to run: it needs their numbers alone to load and lower a schedule."""
    runtime = object.__new__(pytorch._PipelineScheduleRuntime)
    runtime._stages = []
    runtime._num_stages = sum(map(len, positions))
    runtime._n_microbatches = micro_batches
    runtime.pp_group_size = len(positions)
    runtime.pipeline_order = {}
    runtime._defer_pp_recv = False
    runtime._load_csv(str(path))
    return runtime


def dump_with_pytorch(path, order):
    pytorch.PipelineScheduleMulti._dump_csv(SimpleNamespace(pipeline_order=order), str(path))


def actions(order):
    """PyTorch's actions as text, without bubbles and without the sums that follow."""
    return [[str(action) for action in order[rank] if action is not None and action.is_compute_op] for rank in order]


def lanes(schedule):
    return [[str(action) for action in lane] for lane in schedule.lanes]


class FakeStage(SimpleNamespace):
    """As much of a stage as PyTorch's schedules look at when they make their order."""

    def __init__(self, index, num_stages, size):
        super().__init__(
            stage_index=index,
            num_stages=num_stages,
            group_size=size,
            group_rank=0,
            submod=None,
            is_first=index == 0,
            is_last=index == num_stages - 1,
        )


def pytorch_order(kind, size, stages, micro_batches):
    if kind is pytorch.Schedule1F1B:
        order = kind._get_pipeline_order(SimpleNamespace(_num_stages=size, _n_microbatches=micro_batches))
        return {rank: [a for a in row if a is None or a.is_compute_op] for rank, row in order.items()}
    fakes = [FakeStage(index, stages * size, size) for index in range(stages)]
    return kind(fakes, micro_batches, loss_fn=None).pipeline_order


@given(pipelines())
@one_file
def test_pytorch_loads_the_same_actions(tmp_path, pipeline):
    _, positions, micro_batches = pipeline
    schedule = make_schedule(*pipeline)
    write_csv(schedule, tmp_path / "order.csv")
    assert actions(load_with_pytorch(tmp_path / "order.csv", positions, micro_batches).pipeline_order) == lanes(
        schedule
    )


@pytest.mark.parametrize("name", ["interleaved", "zb-h2", "zb-v"])
def test_pytorch_finds_no_deadlock_with_its_communication_added(tmp_path, name):
    positions = positions_for(name, 4, 1 if name == "zb-h2" else 2)
    write_csv(make_schedule(name, positions, 9), tmp_path / "order.csv")
    runtime = load_with_pytorch(tmp_path / "order.csv", positions, 9)
    runtime._simulate()  # raises where a rank makes no progress


@given(pipelines())
@one_file
def test_a_schedule_round_trips_through_its_file(tmp_path, pipeline):
    schedule = make_schedule(*pipeline)
    write_csv(schedule, tmp_path / "order.csv")
    assert read_csv(tmp_path / "order.csv").lanes == schedule.lanes


@pytest.mark.parametrize(
    ("kind", "stages", "micro_batches"),
    [
        (pytorch.Schedule1F1B, 1, 4),
        (pytorch.Schedule1F1B, 1, 10),
        (pytorch.ScheduleInterleaved1F1B, 2, 4),
        (pytorch.ScheduleInterleaved1F1B, 2, 10),
        (pytorch.ScheduleInterleaved1F1B, 3, 8),
        (pytorch.ScheduleLoopedBFS, 2, 5),
        (pytorch.ScheduleInterleavedZeroBubble, 2, 8),
        (pytorch.ScheduleZBVZeroBubble, 2, 3),
        (pytorch.ScheduleZBVZeroBubble, 2, 8),
    ],
)
def test_what_pytorch_dumps_is_read_identically(tmp_path, kind, stages, micro_batches):
    order = pytorch_order(kind, 4, stages, micro_batches)
    dump_with_pytorch(tmp_path / "order.csv", order)
    assert lanes(read_csv(tmp_path / "order.csv")) == actions(order)


@pytest.mark.parametrize("micro_batches", [4, 7, 10, 12])
@pytest.mark.parametrize("stages", [2, 3])
def test_interleaved_is_pytorchs_where_pytorch_has_one(stages, micro_batches):
    order = pytorch_order(pytorch.ScheduleInterleaved1F1B, 4, stages, micro_batches)
    assert lanes(make_schedule("interleaved", positions_for("interleaved", 4, stages), micro_batches)) == actions(order)


def test_1f1b_is_pytorchs():
    order = pytorch_order(pytorch.Schedule1F1B, 4, 1, 9)
    assert lanes(make_schedule("1f1b", line(4), 9)) == actions(order)


def test_a_file_is_named_after_and_empty_cells_are_bubbles(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("0F0,,,0B0\n,1F0,1B0\n\n")
    schedule = read_csv(path)
    assert schedule.name == "mine"
    assert lanes(schedule) == [["0F0", "0B0"], ["1F0", "1B0"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0F0,0B0\n1F0,,1X0\n", "row 2, column 3: '1X0' is not an action"),
        ("0F0,0SEND_F0,0B0\n", "row 1, column 2: .* compute_only"),
        ("0F0,(0F1;0B0)OVERLAP_F_B\n", "row 1, column 2: .* overlapped pairs are not read"),
        ("0F0,0B0\n1F0\n", r"order\.csv: lane 1 lacks 1B0"),
        ("0F0,0B0\n0F0,0B0\n", "stage 0 is at positions 0 and 1"),
        ("0F0,0B0\n\n2F0,2B0\n", "position 1 holds no stage"),
        ("\n,,\n", "is empty"),
        ("", "is empty"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, content, message):
    path = tmp_path / "order.csv"
    path.write_text(content)
    with pytest.raises(PlaitError, match=message):
        read_csv(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PlaitError, match=r"nowhere\.csv cannot be read as CSV"):
        read_csv(tmp_path / "nowhere.csv")


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "order.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlaitError, match="cannot be read as CSV"):
        read_csv(path)
