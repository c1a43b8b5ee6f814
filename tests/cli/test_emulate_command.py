"""`plait emulate` as a user meets it before there is a bed: what it needs, and what it refuses."""

import os
import shutil
from pathlib import Path

import pytest
from command_line import CommandLine

from plait.emulate.commands import missing

OTHER = """
[[hosts]]
name = "elsewhere"
devices = [{ kind = "v100", count = 2 }]
in_host = { bandwidth = "12 GB/s", latency = "5 us" }
"""


def test_without_root_it_says_so_and_ends(plait: CommandLine, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    outcome = plait("emulate", plan)
    assert outcome.code == 2
    assert "needs root" in outcome.error
    assert "Traceback" not in outcome.error
    assert "needs root" in " ".join(plait("doctor").out.split()).replace(" │ ", " ")


def test_without_iproute2_it_names_what_is_missing(plait: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    outcome = plait("emulate", "plan.json")
    assert outcome.code == 2
    assert "ip and tc is missing" in outcome.error


def test_a_cluster_without_the_plans_devices_is_refused(plait: CommandLine, plan: Path, tmp_path: Path) -> None:
    if lack := missing():
        pytest.skip(lack)
    (tmp_path / "other.toml").write_text(OTHER)
    outcome = plait("emulate", plan, "--cluster", tmp_path / "other.toml")
    assert outcome.code == 2
    assert "uses device local/cpu0" in outcome.error
    assert "elsewhere/gpu0" in outcome.error


def test_a_factor_of_nothing_is_refused(plait: CommandLine, plan: Path) -> None:
    if lack := missing():
        pytest.skip(lack)
    outcome = plait("emulate", plan, "--dilation", "0")
    assert outcome.code == 2
    assert "--dilation 0 must be above 0" in outcome.error
