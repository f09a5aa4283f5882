"""Run directories among other folders: `search(["runs"])` finds them, within bounds."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dgt.errors import ConfigError
from dgt.runs.layout import COMPARISON, METRICS, NOT_RUNS, OF_A_RUN, SUMMARY

DEEPEST = 5  # folders below the one that was named
MOST_FOLDERS, MOST_RUNS = 100_000, 10_000  # that are looked into, and read


def search(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The run directories, and the directories of `dgt compare`, in these paths; each once, in order."""
    runs: dict[Path, Path] = {}
    comparisons: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.is_file() and path.name in (METRICS, COMPARISON, SUMMARY):
            path = path.parent
        if not os.path.isdir(path):  # pathlib's raises where a parent may not be entered
            what = "a file" if os.path.exists(path) else "no such directory"
            raise ConfigError(f"{path}: {what}; give a run directory, a sweep, or a folder that holds runs")
        if not os.access(path, os.R_OK | os.X_OK):
            raise ConfigError(f"{path}: may not be read; give a directory of yours")
        for folder in _walk(path, DEEPEST, itertools.count()):
            kind = comparisons if os.path.exists(folder / COMPARISON) else runs
            kind.setdefault(folder.resolve(), folder)
            if len(runs) + len(comparisons) > MOST_RUNS:
                raise ConfigError(f"{path}: more than {MOST_RUNS} runs in there; name a part of them")
    return list(runs.values()), list(comparisons.values())


def _walk(path: Path, deeper: int, looked: Iterator[int]) -> Iterator[Path]:
    if any(os.path.exists(path / name) for name in (*OF_A_RUN, COMPARISON)):
        yield path
    elif deeper:
        folders = []
        try:
            for entry in os.scandir(path):
                if next(looked) > MOST_FOLDERS:
                    raise ConfigError(f"{path}: more than {MOST_FOLDERS} files to look through; name a run directory")
                if entry.name not in NOT_RUNS and not entry.name.startswith(".") and entry.is_dir():
                    folders.append(entry.name)
        except OSError:  # somebody else's, or a link that leads to itself
            return
        for name in sorted(folders):
            yield from _walk(path / name, deeper - 1, looked)
