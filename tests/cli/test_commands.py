"""Every command, used as a user would."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from command_line import JOB, CommandLine

from plait.plan import load_plan
from plait.program import parse_program


def test_plan_prints_a_table_and_writes_the_plan(plait: CommandLine, tmp_path: Path) -> None:
    # Two stages are asked for: left free, the planner may find on a busy machine that one device is faster.
    outcome = plait("plan", JOB, "--cluster", "local:2", "--stages", 2, "--batch", 8, "--budget", 0.5)
    assert outcome.code == 0
    assert "best" in outcome.out and "no plan at all can beat" in outcome.out and "rank 1" in outcome.out
    assert load_plan(tmp_path / "plan.json").batch_size == 8


def test_plan_as_json_has_the_promised_keys(plait: CommandLine) -> None:
    answer = json.loads(plait("plan", JOB, "--cluster", "local:2", "--stages", 2, "--batch", 8, "--json").out)
    assert answer["step_seconds"] >= answer["bound_seconds"] > 0
    assert {"planning_seconds", "micro_batches", "schedule", "stages"} <= set(answer)
    assert [set(stage) >= {"atoms", "devices", "data", "peak_memory_bytes"} for stage in answer["stages"]] == [
        True,
        True,
    ]


def test_plan_for_gpus_needs_no_gpu(plait: CommandLine, tmp_path: Path) -> None:
    cluster = tmp_path / "cards.toml"
    cluster.write_text(
        '[[hosts]]\nname = "node"\ncount = 2\ndevices = [{ kind = "v100", count = 2 }]\n'
        'in_host = { bandwidth = "12 GB/s", latency = "5 us" }\n'
        'uplink = { bandwidth = "25 Gbit/s", latency = "20 us" }\n'
    )
    outcome = plait("plan", "resnet50?image=64", "--cluster", cluster, "--batch", 32, "--budget", 0.5)
    assert outcome.code == 0, outcome.error
    assert "v100: computed at" in outcome.out


def test_program_is_written_as_text(plait: CommandLine, tmp_path: Path) -> None:
    program = tmp_path / "program.txt"
    outcome = plait("plan", JOB, "--cluster", "local:2", "--stages", 2, "--batch", 8, "--program", program)
    assert outcome.code == 0
    assert len(parse_program(program.read_text()).ranks) == 2


def test_simulate_shows_memory_and_writes_a_trace(plait: CommandLine, plan: Path, tmp_path: Path) -> None:
    outcome = plait("simulate", plan, "--trace", tmp_path / "trace.json")
    assert outcome.code == 0
    assert "per step" in outcome.out and "rank 1 on local/cpu1" in outcome.out
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}


def test_verify_agrees_with_one_device(plait: CommandLine, plan: Path, warm_ranks: object) -> None:
    outcome = plait("verify", JOB, "--plan", plan)
    assert outcome.code == 0, outcome.out + outcome.error
    assert "gradients" in outcome.out and "equal" in outcome.out and "different" not in outcome.out


def test_verify_fails_when_one_weight_of_one_rank_is_wrong(plait: CommandLine, plan: Path, warm_ranks: object) -> None:
    outcome = plait("verify", JOB, "--plan", plan, "--disturb-rank", 1)
    assert outcome.code == 1
    assert "different" in outcome.out


def test_profile_lists_the_dearest_atoms(plait: CommandLine) -> None:
    outcome = plait("profile", JOB, "--batch", 8, "--most", 3)
    assert outcome.code == 0
    assert "saved for backward" in outcome.out


def test_doctor_finds_nothing_required_missing(plait: CommandLine) -> None:
    outcome = plait("doctor")
    assert outcome.code == 0
    assert "PyTorch" in outcome.out and "gloo" in outcome.out


@pytest.mark.timeout(200)
def test_train_writes_everything_it_promises(plait: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("train", JOB, "--cluster", "local:2", "--stages", 2, "--batch", 8, "--micro-batches", 4, "--steps", 6)
    outcome = plait(*words, "--verify", "--save", tmp_path / "checkpoint", "--out", out)
    assert outcome.code == 0, outcome.out + outcome.error
    assert "losses equal" in outcome.out and "predicted" in outcome.out and "measured" in outcome.out
    assert len(json.loads((out / "run.json").read_text())["losses"]) == 6
    assert {"simulated", "measured"} == {t["source"] for t in json.loads((out / "timelines.json").read_text())}
    assert json.loads((out / "trace.json").read_text())["traceEvents"]
    assert "<svg" in (out / "report.html").read_text()
    assert (tmp_path / "checkpoint" / "plait.json").exists()
    shown = plait("report", out, "--svg", tmp_path / "timeline.svg")
    assert shown.code == 0 and "measured" in shown.out
    assert ElementTree.parse(tmp_path / "timeline.svg").getroot().tag.endswith("svg")
