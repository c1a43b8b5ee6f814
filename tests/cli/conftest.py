from pathlib import Path

import pytest
from command_line import JOB, CommandLine


@pytest.fixture(scope="session", autouse=True)
def own_cost_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def plait(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def plan(plait: CommandLine, tmp_path: Path) -> Path:
    """A plan of two stages for the small GPT-2."""
    path = tmp_path / "two-stages.json"
    found = plait("plan", JOB, "--cluster", "local:2", "--stages", 2, "--micro-batches", 2, "--batch", 8, "--out", path)
    assert found.code == 0, found.error
    return path
