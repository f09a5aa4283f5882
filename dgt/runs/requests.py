"""Requests to a run under way, as files in its directory: rank 0 looks for them now and then, and answers.

asked/leave-3            by `dgt leave 3`: node 3 is to leave; removed once it has
asked/join-3             by `dgt join 3`: node 3 is to be started again; removed once it is there
asked/leave-3.refused    by rank 0, in place of the request: why not, in words
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from dgt.config.files import read_text, write
from dgt.errors import printable
from dgt.runs.layout import ASKED

LEAVE, JOIN = "leave", "join"
REFUSED = ".refused"
MOST = 4096  # bytes of a refusal


def path_of(run_dir: Path, what: str, node: int) -> Path:
    return run_dir / ASKED / f"{what}-{node}"


def ask(run_dir: Path, what: str, node: int) -> None:
    """Leave a request, and forget the refusal of an earlier one."""
    path = path_of(run_dir, what, node)
    path.parent.mkdir(exist_ok=True)
    path.with_name(path.name + REFUSED).unlink(missing_ok=True)
    path.touch()


def asked(run_dir: Path, what: str) -> list[int]:
    """The nodes of all requests of a kind; none where they cannot be read now."""
    with contextlib.suppress(OSError):
        names = [path.name.removeprefix(f"{what}-") for path in (run_dir / ASKED).glob(f"{what}-*")]
        return sorted(int(name) for name in names if name.isdecimal() and len(name) < 9)
    return []


def refuse(run_dir: Path, what: str, node: int, words: str) -> None:
    path = path_of(run_dir, what, node)
    with contextlib.suppress(OSError):
        write(path.with_name(path.name + REFUSED), words + "\n")
        path.unlink(missing_ok=True)


def settle(run_dir: Path, members: Collection[int]) -> None:
    """Remove what has been done: who left is not among the members, who joined is."""
    with contextlib.suppress(OSError):
        for what, done in ((LEAVE, False), (JOIN, True)):
            for node in asked(run_dir, what):
                if (node in members) == done:
                    path_of(run_dir, what, node).unlink(missing_ok=True)


def withdraw(run_dir: Path, what: str, node: int) -> None:
    with contextlib.suppress(OSError):
        path_of(run_dir, what, node).unlink(missing_ok=True)


def answer(run_dir: Path, what: str, node: int) -> str | None:
    """The words of the refusal, nothing if it is done, None while there is no answer."""
    path = path_of(run_dir, what, node)
    if path.exists():
        return None
    refusal = path.with_name(path.name + REFUSED)
    try:
        words = printable(read_text(refusal, MOST, errors="replace").strip())
        refusal.unlink(missing_ok=True)
        return words
    except OSError:
        return ""
