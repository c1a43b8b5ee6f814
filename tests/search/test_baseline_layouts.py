"""The quick time and memory by which classical planners rank, against the simulator and the memory model."""

from dataclasses import replace

import numpy as np
import pytest
from baseline_chains import hosts, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.program import compile_program, predict_memory
from plait.search import evaluate
from plait.search.baselines.layout import Layout
from plait.search.baselines.network import Network
from plait.search.baselines.setting import Setting


@pytest.mark.parametrize(("schedule", "rounds"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_on_equal_stages_and_fast_links_the_quick_time_is_the_simulated_one(schedule: str, rounds: int) -> None:
    setting = Setting(problem(hosts(4, inside="9 TB/s"), [0.01] * 8, weights=1))
    groups = tuple((device,) for device in range(4)) * rounds
    layout = Layout(setting, tuple(range(2 // rounds, 8, 2 // rounds)), groups)
    for count in (4, 8, 16):
        simulated = evaluate(layout.plan(count, schedule), setting.problem.graph, setting.problem.costs).step_seconds
        assert layout.seconds(np.array([count]), schedule)[0] == pytest.approx(simulated, rel=1e-4)


@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved"]),
    st.lists(st.integers(1, 10**6), min_size=8, max_size=8),
    st.lists(st.integers(1, 10**4), min_size=8, max_size=8),
    st.integers(1, 2),
    st.integers(1, 6),
    st.floats(1.0, 10**5),
)
@settings(max_examples=40, deadline=None)
def test_the_quick_memory_is_not_far_off(
    schedule: str, weights: list[int], sent: list[int], replicas: int, count: int, saved: float
) -> None:
    asked = problem(hosts(4), [0.01] * 8, weights=weights, sent=sent, saved=saved, batch_size=24)
    groups = tuple(tuple(range(p * replicas, (p + 1) * replicas)) for p in range(2))
    stages = 4 if schedule == "interleaved" else 2
    boundaries = tuple(range(8 // stages, 8, 8 // stages))
    plan = Layout(Setting(asked), boundaries, groups * (stages // 2)).plan(count, schedule)
    predicted = max(
        use.peak for use in predict_memory(compile_program(plan, asked.graph), plan, asked.graph, asked.costs)
    )

    def fits(memory: float) -> bool:
        devices = tuple(replace(device, memory_bytes=int(memory)) for device in asked.cluster.devices)
        setting = Setting(replace(asked, cluster=replace(asked.cluster, devices=devices)))
        return bool(Layout(setting, boundaries, groups * (stages // 2)).fits(np.array([count]), schedule)[0])

    messages = 10 * max(sent) * 24
    assert predicted / 2 <= messages or not fits(predicted / 2 - messages)
    assert fits(2 * predicted + messages)


def test_devices_of_a_host_share_its_way_out() -> None:
    network = Network(hosts(4, 4, inside="8 GB/s", across="1 GB/s"))
    assert network.channel((0, 1), (2, 3)).bandwidth == pytest.approx(16e9)
    assert network.channel((0, 1), (4, 5)).bandwidth == pytest.approx(1e9)
    assert network.channel((0, 1), (4, 5)).alone == pytest.approx(2e9)
    assert network.channel((0, 4), (1, 5)).bandwidth == pytest.approx(16e9)
    assert network.channel((0,), (1, 2)).bandwidth == pytest.approx(8e9)
