"""`plait grid` prints what grids move, and refuses what makes no sense."""

import json

import pytest
from command_line import CommandLine

SMALL = "alexnet?image=64&width=0.05&classes=10"


def test_it_prints_a_row_per_number_of_processes_and_the_grid_of_every_layer(plait: CommandLine):
    found = plait("grid", SMALL, "--processes", "4,16", "--batch", 32)
    assert found.code == 0
    assert "a grid per layer at P = 16: network.0" in found.out
    assert "convolutions 1 x P" in found.out


def test_its_numbers_are_there_as_data(plait: CommandLine):
    found = plait("grid", SMALL, "--processes", "64", "--batch", 32, "--json")
    data = json.loads(found.out)
    (row,) = data["processes"]
    assert len(data["layers"]) == 8
    assert "batch" not in row["ways"], "64 processes have no 64 rows"
    assert all(model * batch == 64 and batch <= 32 for model, batch in row["ways"]["per layer"]["grids"])
    assert row["ways"]["per layer"]["seconds"] <= row["ways"]["uniform"]["seconds"]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--processes", "8,many"], "--processes '8,many' must be whole numbers from 1"),
        (["--processes", "0"], "--processes '0' must be whole numbers from 1"),
        (["--bandwidth", "6"], "--bandwidth"),
        (["--alpha", "2 parsecs"], "--alpha"),
        (["--dtype", "int8"], "--dtype 'int8' is not known"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_makes_no_sense_is_refused(plait: CommandLine, flags, why):
    found = plait("grid", SMALL, *flags)
    assert found.code == 2
    assert why in found.error
    assert "Traceback" not in found.error


TWO_HOSTS = """
name = "fast"
[[hosts]]
name = "node"
count = 2
devices = [{ kind = "a100", count = 2 }]
in_host = { bandwidth = "300 GB/s", latency = "3 us" }
uplink = { bandwidth = "1 Gbit/s", latency = "20 us" }
"""
JOB = "gpt2-tiny?layers=2&width=256&heads=2&sequence=64&dropout=0"


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "fast.toml"
    path.write_text(TWO_HOSTS)
    return path


def test_what_devices_would_split_and_why_the_rest_stays_whole_is_explained(plait: CommandLine, cluster):
    found = plait("plan", JOB, "--cluster", cluster, "--explain", "grid")
    assert found.code == 0, found.error
    assert "on 2 devices:" in found.out
    assert "split along dimension" in found.out
    (told,) = json.loads(plait("plan", JOB, "--cluster", cluster, "--explain", "grid", "--json").out)
    assert told["devices"] == 2
    assert all(0.5 - 1e-9 <= part <= 1.0 for part in told["work"])
    assert {exchange["kind"] for exchange in told["exchanges"]} <= {"all-reduce", "all-gather", "reduce-scatter"}


def test_a_plan_that_shares_layers_says_so_and_can_be_simulated_again(plait: CommandLine, cluster):
    found = plait("plan", JOB, "--cluster", cluster, "--tensor", 2, "--batch", 8, "--json", "--budget", 1)
    assert found.code == 0, found.error
    data = json.loads(found.out)
    assert all(stage["tensor"] == 2 and stage["data"] * 2 == len(stage["devices"]) for stage in data["stages"])
    assert any(stage["split"] for stage in data["stages"])
    simulated = plait("simulate", "plan.json")
    assert simulated.code == 0, simulated.error


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--cluster", "local:1", "--explain", "grid"], "no host of local:1 has devices that could share layers"),
        (["--cluster", "local:2", "--tensor", "3"], "none of local:2 has more than 2"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_sharing_that_cannot_be_is_refused(plait: CommandLine, flags, why):
    found = plait("plan", "gpt2-tiny?layers=1&width=32&heads=2&sequence=16", *flags)
    assert found.code == 2
    assert why in found.error
