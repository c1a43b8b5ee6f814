"""`--pin`, `--pins` and `--explain cuts`, used as a user would."""

import json
from pathlib import Path

import pytest
import torch
from command_line import JOB, CommandLine
from torch import Tensor, nn

import plait
from plait.errors import PlaitError

SHARED_NORM = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.before, self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, points):
        return self.head(self.norm(self.inner(self.norm(self.before(points))))).square().mean()
def model():
    return Net()
def batches(n):
    while True:
        yield dict(points=torch.randn(n, 4))
"""


CARDS = """
[[hosts]]
name = "node"
devices = [{ kind = "v100", count = 2 }]
in_host = { bandwidth = "12 GB/s", latency = "5 us" }
"""


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    """Two cards that are elsewhere, so that nothing has to be measured."""
    (tmp_path / "cards.toml").write_text(CARDS)
    return tmp_path / "cards.toml"


@pytest.fixture
def shared_norm(tmp_path: Path) -> str:
    (tmp_path / "shared.py").write_text(SHARED_NORM)
    return "shared.py"


def mean_square(outputs: Tensor, _: object) -> Tensor:
    return outputs.square().mean()


def two_stages(plait_: CommandLine, cards: Path, *words: object) -> list[list[str]]:
    found = plait_("plan", JOB, "--cluster", cards, "--batch", 8, "--stages", 2, "--json", *words)
    assert found.code == 0, found.error
    return [stage["atoms"] for stage in json.loads(found.out)["stages"]]


def test_a_stage_begins_where_it_is_pinned(plait: CommandLine, cards: Path) -> None:
    first, second = two_stages(plait, cards, "--pin", "cut before blocks.1")
    assert second[0].startswith("blocks.1.") and first[-1].startswith("blocks.0.")


def test_pins_of_a_file_and_of_the_command_line_hold_together(plait: CommandLine, cards: Path, tmp_path: Path) -> None:
    (tmp_path / "pins.toml").write_text('pins = ["keep each blocks.*", "stage 1 = blocks.1"]')
    _, second = two_stages(plait, cards, "--pins", "pins.toml", "--pin", "no cut before blocks.1")
    assert [atom.startswith("blocks.0.") for atom in second].count(True) == 21, "all of it, or the cut were inside"


def test_pins_in_python_are_the_same_words(cards: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    example = torch.randn(8, 4)

    def start(pin: str) -> int:
        return plait.plan(model, example, cluster=cards, loss=mean_square, stages=2, pins=[pin]).stages[1].start

    assert start("cut after 0") == start("cut before 1") == 1
    assert start("stage 0 = 0-3") >= 4
    with pytest.raises(PlaitError, match="nothing is computed before 0"):
        start("cut before 0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pin", "cut at blocks.1"), '"cut before MODULE"'),
        (("--pin", "cut before block.1"), "Did you mean blocks.1"),
        (("--pin", "cut before blocks.1", "--pin", "keep blocks.0, blocks.1"), "contradict each other"),
        (("--pin", "stage 5 = norm", "--cluster", "cards.toml"), "at least 6 stages"),
        (("--pins", "nowhere.toml"), "nowhere.toml cannot be read"),
        (("--explain", "costs"), "write cuts, cuts:MODULE for one module, grid, or plans"),
        (("--explain", "cuts:"), "write cuts, cuts:MODULE for one module, grid, or plans"),
        (("--explain", "cuts:blocks.7"), "Did you mean blocks."),
        (("--between", "blocks.0", "blocks.1"), "--between goes with --explain cuts"),
        (("--explain", "cuts", "--between", "blocks.0", "block.1"), "Did you mean blocks.1"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    plait: CommandLine, cards: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    outcome = plait("plan", JOB, "--batch", 8, *words)
    assert outcome.code == 2 and "Traceback" not in outcome.error
    assert message in " ".join(outcome.error.split())
    assert not (tmp_path / "plan.json").exists()


def test_pins_beside_a_finished_plan_are_refused(plait: CommandLine, cards: Path, shared_norm: str) -> None:
    assert plait("plan", shared_norm, "--cluster", cards, "--batch", 8, "--out", "made.json").code == 0
    outcome = plait("train", shared_norm, "--plan", "made.json", "--pin", "cut before head", "--steps", 1)
    assert outcome.code == 2 and "beside --plan" in outcome.error


def test_a_cut_that_a_rule_forbids_says_the_rule(plait: CommandLine, shared_norm: str) -> None:
    outcome = plait("plan", shared_norm, "--batch", 8, "--pin", "cut before inner")
    assert outcome.code == 2
    assert "buffer norm.running_mean is written" in " ".join(outcome.error.split())


def test_modules_are_shown_with_repeated_ones_folded(plait: CommandLine, tmp_path: Path) -> None:
    outcome = plait("plan", JOB.replace("layers=2", "layers=3"), "--batch", 8, "--explain", "cuts")
    assert outcome.code == 0, outcome.error
    rows = [line.split() for line in outcome.out.splitlines()]
    (block,) = [row for row in rows if row[:1] == ["blocks.0"]]
    assert block[1] == "21" and block[2:] == ["2", "KiB", "4", "KiB", "4", "KiB", "bound:", "tuple"]
    assert ["blocks.1", "…", "blocks.2", "as", "blocks.0"] in rows
    assert "legal cuts" in outcome.out and not (tmp_path / "plan.json").exists()


def test_a_module_is_shown_atom_by_atom_and_an_atom_node_by_node(plait: CommandLine) -> None:
    inside = plait("plan", JOB, "--batch", 8, "--explain", "cuts:blocks.1")
    assert "blocks.1.attention.split" in inside.out and "blocks.0" not in inside.out
    assert "makes a tuple" in inside.out
    (atom,) = [word for word in inside.out.split() if word.startswith("blocks.1.attention.split")]
    nodes = plait("plan", JOB, "--batch", 8, "--explain", f"cuts:{atom}")
    assert nodes.out.count("makes a tuple (tuple rule)") == 3


def test_cuts_as_json_tell_bytes_and_reasons(plait: CommandLine, shared_norm: str) -> None:
    words = ("plan", shared_norm, "--batch", 8, "--micro-batches", 2, "--explain", "cuts", "--json")
    answer = json.loads(plait(*words).out)
    assert answer["micro_batch_rows"] == 4
    first, *others = answer["atoms"]
    assert first["cut_before"] is None
    assert all(
        atom["cut_before"]["bytes_per_micro_batch"]
        == 4 * atom["cut_before"]["bytes_per_row"] + atom["cut_before"]["bytes_once"]
        for atom in others
    )
    assert all(len(atom["together"]) == len(atom["nodes"]) - 1 for atom in answer["atoms"])
    (norm,) = [atom for atom in answer["atoms"] if {"name": "linear_1", "module": "inner"} in atom["nodes"]]
    assert norm["together"][0]["nodes"] == ["batch_norm", "linear_1"]
    assert norm["together"][0]["why"].startswith("linear_1 lies between batch_norm and batch_norm_1")


def test_two_parts_are_told_apart_or_why_not(plait: CommandLine, shared_norm: str) -> None:
    words = ("plan", shared_norm, "--batch", 8, "--explain", "cuts", "--between")
    assert "may be parted, by" in plait(*words, "before", "head").out
    assert "may not be parted, because of" in plait(*words, "norm", "inner").out
    found = json.loads(plait(*words, "norm", "inner", "--json").out)
    assert found["cuts"] == [] and "buffer rule" in found["why"]
    assert json.loads(plait(*words, "before", "head", "--json").out)["cuts"][0]["before"].startswith("norm.")
