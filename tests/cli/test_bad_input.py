"""Bad input: one paragraph with the value, the rule and the fix, exit code 2, no traceback, nothing half-written."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import JOB, CommandLine, Outcome

Refused = Callable[..., str]


@pytest.fixture
def refused(plait: CommandLine, tmp_path: Path) -> Refused:
    """Runs a command that must be refused and returns what it said."""

    def run(*words: object) -> str:
        before = {path for path in tmp_path.rglob("*") if path.is_file()}
        outcome: Outcome = plait(*words)
        assert outcome.code == 2, outcome.out + outcome.error
        assert "Traceback" not in outcome.error + outcome.out
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == before, "something was left behind"
        return " ".join(outcome.error.split())

    return run


def test_unknown_job_suggests_one(refused: Refused) -> None:
    assert "gpt2-tiny" in refused("plan", "gpt2-tny")


def test_unknown_cluster_file(refused: Refused) -> None:
    assert "nowhere.toml" in refused("plan", JOB, "--cluster", "nowhere.toml")


def test_cluster_file_that_is_not_toml(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("hosts = [")
    assert "not valid TOML" in refused("plan", JOB, "--cluster", "bad.toml")


def test_unknown_flag(refused: Refused) -> None:
    assert "--stage-count" in refused("plan", JOB, "--stage-count", 3)


def test_unknown_schedule(refused: Refused) -> None:
    assert "gpipe" in refused("plan", JOB, "--schedule", "2f2b", "--batch", 8)


@pytest.mark.parametrize("replicas", ["x", "2,0", ""])
def test_replicas_that_are_no_counts(refused: Refused, replicas: str) -> None:
    assert "--replicas" in refused("plan", JOB, "--replicas", replicas)


def test_unknown_dtype(refused: Refused) -> None:
    assert "float64" in refused("plan", JOB, "--dtype", "float7")


def test_more_stages_than_atoms(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(
        "import torch\nfrom torch import nn\ndef model():\n    return nn.Linear(2, 1)\n"
        "def batches(n):\n    while True:\n        yield torch.randn(n, 2), torch.randn(n, 1)\n"
        "def loss(outputs, batch):\n    return (outputs - batch[1]).square().mean()\n"
    )
    said = refused("plan", "tiny.py", "--cluster", "local:9", "--stages", 9, "--batch", 36)
    assert "9 stages" in said and "atoms" in said


def test_more_stages_than_devices(refused: Refused) -> None:
    assert "2 devices" in refused("plan", JOB, "--cluster", "local:2", "--stages", 3, "--batch", 8)


def test_batch_smaller_than_micro_batches_times_replicas(refused: Refused) -> None:
    said = refused("plan", JOB, "--cluster", "local:2", "--replicas", "2", "--micro-batches", 4, "--batch", 7)
    assert "batch size 7" in said and "4 micro-batches x 2 replicas" in said


def test_plan_for_another_model(refused: Refused, plan: Path) -> None:
    assert "was made for" in refused("verify", JOB.replace("width=32", "width=64"), "--plan", plan)


def test_corrupt_plan(refused: Refused, plan: Path) -> None:
    plan.write_text(plan.read_text()[:100])
    assert "damaged" in refused("simulate", plan)


def test_newer_plan(refused: Refused, plan: Path) -> None:
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"version": 99}))
    assert "version 99" in refused("simulate", plan)


def test_missing_plan(refused: Refused) -> None:
    assert "cannot read plan" in refused("verify", JOB, "--plan", "nowhere.json")


def test_batch_that_differs_from_the_plan(refused: Refused, plan: Path) -> None:
    assert "plan's batch size 8" in refused("train", JOB, "--plan", plan, "--batch", 16)


def test_plan_for_machines_elsewhere_cannot_be_started_here(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "far.toml").write_text(
        '[[hosts]]\nname = "node"\ncount = 2\ndevices = [{ kind = "v100", count = 1 }]\n'
        'in_host = { bandwidth = "12 GB/s", latency = "5 us" }\n'
        'uplink = { bandwidth = "25 Gbit/s", latency = "20 us" }\n'
    )
    assert "torchrun" in refused("train", JOB, "--cluster", "far.toml", "--batch", 8, "--steps", 1)


def test_disturbing_a_rank_that_does_not_exist(refused: Refused, plan: Path) -> None:
    assert "ranks 0 to 1" in refused("verify", JOB, "--plan", plan, "--disturb-rank", 7)


def test_report_of_no_run(refused: Refused) -> None:
    assert "holds no finished run" in refused("report", "nowhere")


MODEL = """
import torch
from torch import nn
class Chooser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)
    def forward(self, x):
        {body}
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.chooser = Chooser()
    def forward(self, points):
        return self.chooser(points)
def model():
    return Outer()
def batches(n):
    while True:
        yield dict(points=torch.randn(n, 2))
"""


def test_branch_on_a_value_names_module_and_line(refused: Refused, tmp_path: Path) -> None:
    chooser = MODEL.format(body="return self.inner(x).mean() if x.sum() > 0 else self.inner(-x).sum()")
    (tmp_path / "branch.py").write_text(chooser.replace("return Outer()", "return Chooser()").replace("points=", "x="))
    said = refused("plan", "branch.py", "--batch", 8)
    assert "the model (Chooser) branches on a tensor's value" in said and "branch.py" in said and "line 9" in said
    assert "a module of its own" in said


def test_model_without_a_loss(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "logits.py").write_text(MODEL.format(body="return self.inner(x)"))
    said = refused("plan", "logits.py", "--batch", 8)
    assert "training needs one number" in said and "(rows, 1)" in said and "loss(outputs, batch)" in said


def test_syntax_error_names_the_line(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def model(:\n")
    said = refused("plan", "broken.py")
    assert "broken.py" in said and "line 1" in said


def test_brackets_in_a_message_are_shown(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[[hosts")
    assert "tables look like [[hosts]]" in refused("plan", JOB, "--cluster", "bad.toml")
    assert "[/missing]" in refused("plan", "[/missing].py")


def test_files_that_cannot_be_written(refused: Refused, plan: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--trace" in refused("simulate", plan, "--trace", "file/trace.json")
    assert "--program" in refused("plan", JOB, "--batch", 8, "--program", "file/program.txt")
    assert "--out" in refused("plan", JOB, "--batch", 8, "--out", "file/plan.json")


def test_plan_for_another_model_is_not_trained(refused: Refused, plan: Path) -> None:
    assert "was made for" in refused("train", JOB.replace("width=32", "width=64"), "--plan", plan, "--out", "run")


def test_a_folder_that_is_no_checkpoint(refused: Refused, plan: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter-1.tex").write_text("years of work")
    assert "is not a checkpoint" in refused("train", JOB, "--plan", plan, "--load", "thesis")
    assert "saving there would replace it" in refused("train", JOB, "--plan", plan, "--save", "thesis")


def test_weights_that_do_not_exist_or_do_not_fit(refused: Refused, plan: Path, tmp_path: Path) -> None:
    words = ("train", JOB, "--plan", plan, "--out", "run", "--weights")
    assert "nowhere.pt: there is no such file or folder" in refused(*words, "nowhere.pt")
    torch.save({"norm.weight": torch.ones(32)}, tmp_path / "other.pt")
    said = refused(*words, "other.pt")
    assert "lack token_embedding.weight" in said
    assert "tensors are missing. Names must be those of the model's state_dict" in said
    assert "Leave one of them out" in refused(*words, "other.pt", "--load", "checkpoint")


def test_job_without_batches(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text(
        "from torch import nn\ndef model():\n    return nn.Linear(2, 1)\ndef batches(n):\n    return []\n"
    )
    assert "gave no batch" in refused("plan", "empty.py")


def test_report_of_nothing(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "timelines.json").write_text("[]")
    assert "holds no finished run" in refused("report", tmp_path)


def test_verifying_split_rows_with_dropout_on(refused: Refused, plait: CommandLine, tmp_path: Path) -> None:
    job = JOB.replace("dropout=0", "dropout=0.1")
    assert plait("plan", job, "--cluster", "local:2", "--replicas", "2", "--batch", 8, "--out", "split.json").code == 0
    assert "draws random numbers" in refused("verify", job, "--plan", tmp_path / "split.json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--schedule", "1f1"), 'Did you mean "1f1b"?'),
        (("--schedule", "nowhere.csv"), "nowhere.csv cannot be read"),
        (("--sync", "rings"), "hierarchical"),
        (("--compare", "pipe-dream"), 'Did you mean "pipedream"?'),
        (("--what-if", "uplnk=1 GB/s"), 'Did you mean "uplink"?'),
        (("--what-if", "uplink=1 GB/s"), "no links from hosts to switches"),
        (("--what-if", "hosts=4"), "one [[hosts]] table"),
        (("--what-if", "devices=h100", "--batch", 8), "measured and computed costs do not compare"),
        (("--explain", "plan"), "plans"),
        (("--explain", "plans", "--between", "a", "b"), "--between goes with --explain cuts"),
        (("--stages", 2, "--replicas", "1,1,1", "--batch", 8), "2 stages were asked for, but replicas are given for 3"),
        (("--budget", -1), "--budget"),
    ],
)
def test_flags_that_cannot_be_meant(refused: Refused, words: tuple[object, ...], said: str) -> None:
    assert said in refused("plan", JOB, "--cluster", "local:2", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stages", 3), "--stages asks for 3 stages, but --schedule order.csv is for 2"),
        (("--replicas", "1"), "--replicas asks for 1 stages"),
        (("--micro-batches", 2), "--micro-batches asks for 2 micro-batches, but --schedule order.csv is for 1"),
    ],
)
def test_flags_that_contradict_a_schedule_file(
    refused: Refused, tmp_path: Path, words: tuple[object, ...], said: str
) -> None:
    (tmp_path / "order.csv").write_text("0F0,0B0\n1F0,1B0\n")
    assert said in refused("plan", JOB, "--cluster", "local:2", "--schedule", "order.csv", *words)


def test_a_schedule_file_with_stages_where_none_are_planned(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "order.csv").write_text("1F0,1B0\n0F0,0B0\n")
    assert "row p of P holds stage p" in refused("plan", JOB, "--schedule", "order.csv")


@pytest.mark.parametrize(
    "words", [("--stages", 2), ("--schedule", "gpipe"), ("--no-recompute",), ("--pin", "cut before blocks.1")]
)
@pytest.mark.parametrize("command", ["train", "verify"])
def test_choosing_what_a_given_plan_has_chosen(refused: Refused, command: str, words: tuple[object, ...]) -> None:
    said = refused(command, JOB, "--plan", "plan.json", *words)
    assert str(words[0]) in said and "Leave one of them out" in said


def test_several_files_are_all_written_or_none(refused: Refused, plan: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("--batch", 8, "--cluster", "local:2", "--program", "program.txt")
    assert "--export-schedule" in refused("plan", JOB, *words, "--export-schedule", "file/order.csv")
    assert "--out" in refused("plan", JOB, *words, "--out", "file/plan.json")


def test_a_model_that_fits_nowhere(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(
        '[[hosts]]\nname = "node"\ndevices = [{ kind = "v100", count = 2, memory = "100 kB" }]\n'
        'in_host = { bandwidth = "12 GB/s", latency = "5 us" }\n'
    )
    assert "too little" in refused("plan", JOB, "--cluster", "tiny.toml", "--batch", 8)
