"""The examples run as their first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(*command: object, cwd: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cwd / "cache")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(250)
def test_the_api_example_learns_on_two_ranks(tmp_path: Path) -> None:
    script = EXAMPLES / "api.py"
    out = run(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, script, cwd=tmp_path
    )
    losses = [float(line.rsplit(" ", 1)[1]) for line in out.splitlines() if line.startswith("step")]
    assert len(losses) == 5 and losses[-1] < losses[0] / 2


@pytest.mark.timeout(250)
def test_a_job_file_with_tuple_batches_and_its_own_loss_learns(tmp_path: Path) -> None:
    words = [
        "train",
        EXAMPLES / "custom_model.py",
        "--cluster",
        "local:2",
        "--stages",
        2,
        "--steps",
        40,
        "--out",
        "run",
    ]
    out = run(sys.executable, "-m", "plait", *words, "--verify", cwd=tmp_path)
    assert "losses equal" in out
    first, last = (float(n) for n in out.split("loss ")[-1].split(" over")[0].split(" → "))
    assert last < first / 2
