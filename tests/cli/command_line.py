"""Runs `plait …` inside the test process, as a user sees it: exit code, output, errors."""

import sys
from dataclasses import dataclass

import pytest

from plait.cli import main

JOB = "gpt2-tiny?layers=2&width=32&heads=2&sequence=16&dropout=0"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    error: str


class CommandLine:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: object) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["plait", *map(str, words)])
        self._monkeypatch.setenv("COLUMNS", "110")
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = self._capsys.readouterr()
        return Outcome(code, captured.out, captured.err)
