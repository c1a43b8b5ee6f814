"""`plait train --save` and `--load`, and `plait verify` where something is not a number."""

import math
from pathlib import Path

import pytest
import torch
from command_line import JOB, CommandLine

from plait.cli.outcome import largest_loss_difference
from plait.cli.verify import largest_difference
from plait.jobs import load_job

WORDS = ("train", JOB, "--cluster", "local:2", "--batch", 8, "--micro-batches", 2, "--steps", 2)


def test_a_loaded_run_continues_and_still_equals_one_process(
    plait: CommandLine, tmp_path: Path, warm_ranks: object
) -> None:
    whole = plait(*WORDS[:-1], 4, "--stages", 2, "--out", "whole")
    first = plait(*WORDS, "--stages", 2, "--save", "checkpoint", "--out", "first")
    second = plait(*WORDS, "--replicas", 2, "--load", "checkpoint", "--out", "second", "--verify")
    assert (whole.code, first.code, second.code) == (0, 0, 0), whole.error + first.error + second.error
    assert "losses equal" in second.out
    assert last_loss(second.out) == last_loss(whole.out)


def test_a_run_starts_from_weights_and_still_equals_one_process(
    plait: CommandLine, tmp_path: Path, warm_ranks: object
) -> None:
    state = load_job(JOB).model().state_dict()
    for name, tensor in state.items():
        state[name] = torch.full_like(tensor, 1 / 64)
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, "equal.pt")
    found = plait(*WORDS, "--stages", 2, "--weights", "equal.pt", "--verify")
    assert found.code == 0, found.error
    assert "every name there begins with 'module.'" in " ".join(found.out.split())
    assert "losses equal" in found.out
    assert found.out.split("loss ")[1].startswith(f"{math.log(256):.4f}"), "equal weights make every token as likely"


def last_loss(out: str) -> str:
    """`loss 5.4663 → 5.3966 over 4 steps`: the number after the arrow."""
    return out.split(" → ")[-1].split(" over ")[0]


def test_a_job_without_batches_left_is_told(plait: CommandLine, tmp_path: Path, warm_ranks: object) -> None:
    (tmp_path / "short.py").write_text(
        "import torch\nfrom torch import nn\ndef model():\n    return nn.Linear(2, 1)\n"
        "def batches(n):\n    for _ in range(2):\n        yield torch.randn(n, 2)\n"
        "def loss(outputs, batch):\n    return outputs.square().mean()\n"
    )
    words = ("train", "short.py", "--cluster", "local:1", "--batch", 4)
    first = plait(*words, "--steps", 5, "--save", "checkpoint", "--out", "first")
    assert first.code == 0, first.error
    assert "over 2 steps" in first.out, "a run ends with its batches"
    second = plait(*words, "--steps", 1, "--load", "checkpoint", "--out", "second")
    assert second.code == 1
    assert "short.py gave no batch after the 2 steps the run had made before" in second.error


def test_what_is_not_a_number_is_different() -> None:
    good, bad = torch.ones(3), torch.tensor([1.0, math.nan, 1.0])
    for found, expected in ((bad, good), (good, bad), (bad, bad)):
        assert largest_difference({"a": good, "b": found}, {"a": good, "b": expected}) == math.inf
    assert largest_difference({"a": good}, {"a": good}) == 0.0
    assert largest_loss_difference([1.0, math.nan], [1.0, math.nan]) == math.inf
    assert largest_loss_difference([1.0, 2.0], [1.0, 2.0]) == 0.0


def test_a_failed_run_ends_with_one_paragraph_and_code_1(
    plait: CommandLine, monkeypatch: pytest.MonkeyPatch, warm_ranks: object
) -> None:
    job = Path(__file__).parents[1] / "run" / "fragile_job.py"
    monkeypatch.setenv("FRAGILE", "1 optimizer 2 raise")
    outcome = plait("train", job, "--cluster", "local:2", "--stages", 2, "--steps", 5, "--out", "run")
    assert outcome.code == 1
    assert "Traceback" not in outcome.error
    message = " ".join(outcome.error.split())
    assert message.startswith("error: rank 1 failed, in step 1 at STEP s1.0: ValueError: optimizer is fragile.")
    assert Path("run/logs/rank-1.log").read_text().count("Traceback") >= 1, "the log has the rest"
