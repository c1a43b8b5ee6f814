"""What a killed owner leaves behind is told from what is in use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plait.emulate.leftovers import Note, Process, clear_leftovers, parse_note, started, this_process

GONE = Process(pid=os.getpid(), started=1)  # the id has come again since


def test_a_note_round_trips(tmp_path: Path) -> None:
    note = Note(this_process(), ("plait-a-0", "plait-a-1"), (Process(7, 8),))
    note.write(tmp_path / "a.json")
    assert parse_note((tmp_path / "a.json").read_text()) == note


@pytest.mark.parametrize("text", ["", "[]", "{", '{"owner": 3}', '{"owner": {"pid": "x"}, "namespaces": []}'])
def test_what_is_no_note_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert parse_note(text) is None
    assert clear_leftovers(tmp_path) == 0
    assert (tmp_path / "a.json").exists()


def test_namespaces_of_others_are_never_touched() -> None:
    note = parse_note('{"owner": {"pid": 1, "started": 1}, "namespaces": ["mine", "plait-x"], "processes": []}')
    assert note is not None
    assert note.namespaces == ("plait-x",)


def test_a_process_is_known_by_when_it_started() -> None:
    assert this_process().is_alive()
    assert not GONE.is_alive()
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert started(child.pid) is None


def test_a_bed_in_use_stays_and_one_whose_owner_is_gone_goes(tmp_path: Path) -> None:
    Note(this_process()).write(tmp_path / "used.json")
    Note(GONE).write(tmp_path / "left.json")
    assert clear_leftovers(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["used.json"]


def test_processes_that_are_left_are_ended(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        left = Process(child.pid, started(child.pid) or 0)
        Note(GONE, processes=(left, Process(other.pid, 1))).write(tmp_path / "left.json")
        clear_leftovers(tmp_path)
        assert child.wait(timeout=5) < 0
        assert other.poll() is None, "another process has that id now"
    finally:
        other.kill()
        other.wait()
