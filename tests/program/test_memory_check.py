"""A plan that does not fit is refused by the device's name, with numbers of what would fit."""

from dataclasses import replace

import pytest
from program_strategies import star

from plait.errors import PlaitError
from plait.plan import Plan, even_stages
from plait.program import RankMemory, check_memory

MIB = 2**20


def plan(limit: int, *, schedule: str = "1f1b", micro_batches: int = 4, recompute: bool = False) -> Plan:
    """Two stages and 64 rows; the second device has `limit` MiB."""
    cluster = star(2)
    cluster = replace(cluster, devices=(cluster.devices[0], replace(cluster.devices[1], memory_bytes=limit * MIB)))
    stages = tuple(replace(stage, recompute=recompute) for stage in even_stages([1], 2, [[0], [1]]))
    return Plan("chain", "", cluster, 64, micro_batches, schedule, stages)


def held(*, activations: int, parameters: int = 10, batch: int = 0, recomputed: int = 1 << 20) -> RankMemory:
    """In MiB; a rank with AdamW, that is four times its parameters."""
    parts = parameters, parameters, 2 * parameters, 0, activations, batch, recomputed
    return RankMemory(*(part * MIB for part in parts))


def complaint(use: RankMemory, asked: Plan) -> str:
    with pytest.raises(PlaitError) as raised:
        check_memory((held(activations=1), use), asked)
    return str(raised.value)


def test_a_plan_that_fits_is_accepted():
    check_memory((held(activations=1), held(activations=60)), plan(100))


def test_the_device_and_what_it_lacks_are_named():
    text = complaint(held(activations=80), plan(100))
    assert text.startswith("rank 1 on d1 would need 120 MiB but the device has 100 MiB, 20 MiB too little: 10 MiB")
    assert "20 MiB optimiser state, 80 MiB activations" in text


def test_more_micro_batches_are_named_where_they_are_smaller_then():
    assert "Use 8 micro-batches, now 4." in complaint(held(activations=80), plan(100))
    assert "micro-batches, now" not in complaint(held(activations=80), plan(100, schedule="gpipe"))
    assert "micro-batches, now" not in complaint(held(activations=4000), plan(100))  # more than there are rows


def test_1f1b_is_named_where_gpipe_holds_too_many():
    text = complaint(held(activations=80), plan(100, schedule="gpipe", micro_batches=8))
    assert "Use schedule 1f1b (about 60 MiB)" in text
    assert "1f1b" not in complaint(held(activations=800), plan(100, schedule="gpipe"))


def test_recomputation_is_named_where_it_is_enough_and_not_done_yet():
    use = held(activations=80, recomputed=30)
    assert "recompute its activations (about 70 MiB)" in complaint(use, plan(100))
    assert "recompute" not in complaint(use, plan(100, recompute=True))
    assert "recompute" not in complaint(held(activations=80, recomputed=70), plan(100))


def test_more_stages_are_named_where_nothing_else_is_enough():
    assert "Use 81 stages or more, now 2, or a smaller batch." in complaint(held(activations=4000), plan(100))


def test_what_is_always_held_needs_stages_of_its_own():
    text = complaint(held(parameters=30, activations=5), plan(100))
    assert "Without activations it needs 120 MiB: use 4 stages or more, now 2." in text


def test_a_batch_that_alone_is_too_large_is_named():
    assert "A batch alone is 200 MiB: use a smaller batch." in complaint(held(activations=5, batch=200), plan(100))
