"""Shared by the tests of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dgt.cli import main
from dgt.processes import output


@pytest.fixture(autouse=True)
def _log_as_the_command_does() -> None:
    """Tests that start ranks without the command read its lines on standard error, too."""
    output.log_to_stderr(is_main=True)


@dataclass
class Said:
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def dgt_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Said]]:
    """The command without a process of its own; what its ranks print goes past pytest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)

    def run(*arguments: str) -> Said:
        code = 0
        try:
            main(arguments)
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return Said(code, *capsys.readouterr())

    yield run
    for name in set(sys.modules) - known:  # the next test may have a module of the same name
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
