"""`plait plan --profile`: planning without a model, and what can and cannot be done with such a plan."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import JOB, CommandLine
from torch import nn

import plait
from plait.errors import PlaitError
from plait.jobs.optimizers import adamw
from plait.plan import load_plan, profile_source
from plait.program import parse_program


def text_of(layers: int) -> str:
    """A chain of equal layers: 4 ms forward, 8 ms backward, a kilobyte per row between them."""
    numbers = "forward_compute_time=4.0, backward_compute_time=8.0, activation_size=8192.0, parameter_size=4096.0"
    nodes = [f"node{i} -- Linear(8, 8) -- {numbers}" for i in range(layers)]
    return "\n".join([*nodes, *(f"\tnode{i} -- node{i + 1}" for i in range(layers - 1))])


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "graph.txt"
    path.write_text(text_of(8))
    return path


def cluster_file(folder: Path, kind: str, count: int) -> Path:
    path = folder / f"{count}-{kind}.toml"
    path.write_text(
        f'[[hosts]]\nname = "node"\ndevices = [{{ kind = "{kind}", count = {count} }}]\n'
        'in_host = { bandwidth = "12 GB/s", latency = "5 us" }\n'
    )
    return path


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    return cluster_file(tmp_path, "v100", 4)


@pytest.fixture
def profile_plan(plait: CommandLine, profile: Path, cards: Path, tmp_path: Path) -> Path:
    wanted = ("--stages", 4, "--micro-batches", 8, "--schedule", "1f1b", "--batch", 64, "--profile-batch", 8)
    outcome = plait("plan", "--profile", profile, "--cluster", cards, *wanted)
    assert outcome.code == 0, outcome.error
    return tmp_path / "plan.json"


def test_a_profile_is_planned_without_a_job(plait: CommandLine, profile: Path, cards: Path, tmp_path: Path) -> None:
    outcome = plait("plan", "--profile", profile, "--cluster", cards, "--program", tmp_path / "program.txt")
    assert outcome.code == 0, outcome.error
    assert "Plans for graph.txt" in outcome.out and "measured with 256 rows" in " ".join(outcome.out.split())
    assert "plait simulate" in outcome.out and "plait train" not in outcome.out
    assert load_plan(tmp_path / "plan.json").batch_size == 256
    assert parse_program((tmp_path / "program.txt").read_text()).ranks


def test_equal_layers_take_the_time_their_profile_says(profile_plan: Path) -> None:
    plan = load_plan(profile_plan)
    assert [stage.end - stage.start for stage in plan.stages] == [2, 2, 2, 2]
    # 8 micro-batches of the 8 rows measured, each 2 x 12 ms on a stage, and 3 more to fill and drain the pipeline
    assert plan.predicted_seconds == pytest.approx((8 + 3) * 24e-3, rel=0.01)


def test_half_the_rows_measured_is_twice_the_time(
    plait: CommandLine, profile: Path, cards: Path, tmp_path: Path
) -> None:
    def seconds(rows: int) -> float:
        words = ("--stages", 1, "--replicas", "1", "--micro-batches", 4, "--batch", 64, "--profile-batch", rows)
        return float(
            json.loads(plait("plan", "--profile", profile, "--cluster", cards, *words, "--json").out)["step_seconds"]
        )

    assert seconds(4) == pytest.approx(2 * seconds(8), rel=0.01)


def test_json_has_the_keys_of_any_plan(plait: CommandLine, profile: Path, cards: Path) -> None:
    answer = json.loads(plait("plan", "--profile", profile, "--cluster", cards, "--json").out)
    assert answer["step_seconds"] >= answer["bound_seconds"] > 0
    assert answer["stages"][0]["atoms"][0] == "node0 Linear" and answer["stages"][0]["peak_memory_bytes"] > 0


def test_slower_devices_of_another_kind_are_told(plait: CommandLine, profile: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.toml"
    mixed.write_text(
        '[[hosts]]\nname = "node"\ndevices = [{ kind = "v100", count = 1 }, { kind = "t4", count = 1 }]\n'
        'in_host = { bandwidth = "12 GB/s", latency = "5 us" }\n'
    )
    outcome = plait("plan", "--profile", profile, "--cluster", mixed)
    assert outcome.code == 0, outcome.error
    assert "t4: 1.9 times those of v100" in " ".join(outcome.out.split())


def test_simulate_reads_the_profile_again(plait: CommandLine, profile_plan: Path) -> None:
    outcome = plait("simulate", profile_plan)
    assert outcome.code == 0, outcome.error
    assert "264 ms per step" in outcome.out and "rank 3 on node/gpu3" in outcome.out


def test_simulate_finds_a_profile_that_moved(plait: CommandLine, profile: Path, profile_plan: Path) -> None:
    profile.rename(profile.with_name("moved.txt"))
    assert "cannot read profile" in plait("simulate", profile_plan).error
    assert plait("simulate", profile_plan, "--profile", profile.with_name("moved.txt")).code == 0


def test_simulate_refuses_another_profile(plait: CommandLine, profile: Path, profile_plan: Path) -> None:
    profile.write_text(text_of(9))
    outcome = plait("simulate", profile_plan)
    assert outcome.code == 2 and "was made for" in outcome.error


def test_simulate_takes_the_flag_of_the_plans_own_source(plait: CommandLine, profile: Path, profile_plan: Path) -> None:
    outcome = plait("simulate", profile_plan, "--job", JOB)
    assert outcome.code == 2 and "--job does not apply" in outcome.error
    profile_plan.write_text(json.dumps({**json.loads(profile_plan.read_text()), "notes": {}}))
    outcome = plait("simulate", profile_plan, "--profile", profile)
    assert outcome.code == 2 and "--profile does not apply" in outcome.error


@pytest.mark.parametrize("command", ["train", "verify"])
def test_a_plan_from_a_profile_cannot_be_trained(plait: CommandLine, profile_plan: Path, command: str) -> None:
    outcome = plait(command, JOB, "--plan", profile_plan)
    said = " ".join(outcome.error.split())
    assert outcome.code == 2 and "made from the profile" in said and "nothing to train" in said


def test_nor_by_a_script(profile_plan: Path) -> None:
    with pytest.raises(PlaitError, match="made from the profile"):
        plait.parallelize(nn.Linear(2, 1), load_plan(profile_plan), optimizer=adamw)


def test_the_plans_note_of_its_profile_is_checked(profile_plan: Path) -> None:
    content = json.loads(profile_plan.read_text())
    assert content["notes"]["profile"]["rows"] == 8
    for damage in ({"file": 3, "rows": 8}, {"file": "graph.txt", "rows": 0}, "graph.txt"):
        profile_plan.write_text(json.dumps({**content, "notes": {"profile": damage}}))
        with pytest.raises(PlaitError, match="damaged"):
            profile_source(load_plan(profile_plan))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "neither JOB nor --profile"),
        ((JOB, "--profile", "graph.txt"), "both given"),
        ((JOB, "--profile-batch", 8), "Give --profile"),
        (("--profile", "nowhere.txt"), "cannot read profile nowhere.txt"),
        (("--profile", "graph.txt", "--dtype", "float64"), "--dtype float64 does not apply"),
        (("--profile", "broken.txt"), "broken.txt, line 1"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    plait: CommandLine, profile: Path, tmp_path: Path, words: tuple[object, ...], said: str
) -> None:
    (tmp_path / "broken.txt").write_text("no profile at all")
    outcome = plait("plan", *words)
    assert outcome.code == 2 and said in " ".join(outcome.error.split()), outcome.error
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("name", ["alexnet.txt", "vgg16.txt", "resnet50.txt", "gnmt.txt", "bert32-a100.piper.json"])
def test_every_public_profile_is_planned(
    plait: CommandLine, public_profile: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    cluster = cluster_file(tmp_path, "a100" if "a100" in name else "v100", 4)
    outcome = plait("plan", "--profile", public_profile(name), "--cluster", cluster, "--json", "--budget", 1)
    assert outcome.code == 0, outcome.error
    answer = json.loads(outcome.out)
    assert answer["bound_seconds"] <= answer["step_seconds"] <= 4 * answer["bound_seconds"]
