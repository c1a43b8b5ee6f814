"""A small model, costed once, and what tests of the bed need of the machine."""

import pytest
from small_case import JOB, TWO_HOSTS, Small

from plait.cli.prepare import prepare
from plait.cluster import parse_cluster
from plait.emulate.commands import missing
from plait.emulate.leftovers import clear_leftovers


@pytest.fixture(scope="session")
def small() -> Small:
    cluster = parse_cluster(TWO_HOSTS, source="two hosts")
    return Small(prepare(JOB, cluster, batch_size=16, dtype="float32", seed=0))


@pytest.fixture
def machine() -> None:
    """Root and iproute2, or the test is left out; and nothing there from a run that was killed."""
    if lack := missing():
        pytest.skip(lack)
    clear_leftovers()
