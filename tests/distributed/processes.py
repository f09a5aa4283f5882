"""Waiting for what is about to happen, and the processes of this machine as /proc shows them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def until(ready: Callable[[], object], why: Callable[[], object] = lambda: "", seconds: float = 120) -> None:
    """Look again until it is so: a busy machine may take its time. `why` tells what is wrong if it never is."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


def descendants(pid: int) -> set[int]:
    """Every process below `pid`, however deep."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found, frontier = set(), {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def alive(pids: set[int]) -> set[int]:
    running = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                running.add(pid)
    return running


def all_end(pids: set[int], seconds: float = 20) -> None:
    """They do, by themselves."""
    until(lambda: not alive(pids), lambda: f"still there: {alive(pids)}", seconds)


def commands_with(words: str) -> list[str]:
    """Command lines of processes in which these words stand."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if words in line]
