"""The examples run as their first lines say."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from plait.switch import native
from plait.switch.daemon import Switch

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


@pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))
@pytest.mark.timeout(120)
def test_a_script_with_distributed_data_parallel_trains_by_a_switch(tmp_path: Path) -> None:
    with Switch(key="of the test") as switch, socket.create_server(("127.0.0.1", 0)) as free:
        common = {
            **os.environ,
            "PLAIT_SWITCH": "{}:{}".format(*switch.address),
            "PLAIT_JOB_KEY": "of the test",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
        }
        free.close()
        ranks = [
            subprocess.Popen(
                [sys.executable, EXAMPLES / "ddp_passing.py"],
                env={**common, "RANK": str(rank), "PLAIT_HOST": f"host{rank}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            spoken = [rank.communicate(timeout=90) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        summed = switch.status()["counters"]["completed"]
    for rank, (out, error) in enumerate(spoken):
        assert out.startswith(f"rank {rank}: loss ") and float(out.split()[-1]) < 1e-3, out + error
        assert "instead" not in error and "goes over" not in error
    assert summed >= 100
