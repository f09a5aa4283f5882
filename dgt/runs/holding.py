"""Asking for a directory until it is held, or until it is known who holds it: by ranks together, or by one process."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dgt.errors import ConfigError, SharedError
from dgt.processes.agreement import broadcast_text
from dgt.processes.node import Node
from dgt.runs.lock import PAUSE, SILENCE, RunLock

HELD = "held"  # the answer in place of a reason to refuse
Say = Callable[[str], None]


@dataclass(slots=True)
class Asking:
    """One who wants a directory; `name` is what the user calls it."""

    lock: RunLock
    name: str
    say: Say
    needed: bool = True
    """Otherwise a directory where no lock can be made is used without."""
    _told: bool = False
    _patience: float = field(default_factory=lambda: time.monotonic() + SILENCE)

    def answer(self) -> str:
        """`HELD`, the reason to refuse, or nothing: the file of another host has to be watched for a while."""
        try:
            self.lock.directory.mkdir(parents=True, exist_ok=True)
            rival = self.lock.attempt()
        except OSError as error:
            why = f"{self.name}: cannot write there ({error.strerror})"
            if self.needed:
                return f"{why}; choose another directory"
            self.say(f"{why}: no lock keeps other runs out")
            return HELD
        if rival is None:
            return HELD
        if rival.lives and (rival.owner.held or time.monotonic() > self._patience):
            return f"{self.name}: held by another run, {rival.owner}; wait for its end, or choose another directory"
        if rival.owner.held and not self._told:
            self._told = True
            self.say(f"{self.name}: held by {rival.owner}; waiting up to {SILENCE:g} s for a sign that it still runs")
        return ""


def hold(node: Node, directory: Path, name: str, run: str, say: Say, needed: bool = True) -> RunLock:
    """Rank 0 takes the directory, or all ranks raise who has it; all ranks call it, and each gets its claim.

    The others hear from rank 0 every moment: it may have to watch the file of another host for a while.
    """
    asking = Asking(RunLock(directory, run), name, say, needed)
    while True:
        words = broadcast_text(node, asking.answer()[:500] if node.is_main else "", 2048)
        if words == HELD:
            return asking.lock
        if words:
            raise SharedError(words)
        time.sleep(PAUSE)


@contextlib.contextmanager
def held(directory: Path, say: Say) -> Iterator[RunLock]:
    """The same for a command that is one process, or that writes the results of its ranks."""
    asking = Asking(RunLock(directory, secrets.token_hex(8)), f"run_dir={directory}", say)
    while not (words := asking.answer()):
        time.sleep(PAUSE)
    if words != HELD:
        raise ConfigError(words)
    try:
        yield asking.lock
    finally:
        asking.lock.release()
