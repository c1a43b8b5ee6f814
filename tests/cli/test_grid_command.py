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
