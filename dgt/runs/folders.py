"""The directories of checkpoints: how they are called, which of them are ours, and which old ones may go.

    checkpoints/000000000120-5f3a9c1e        iteration 120, by the start of the run that called itself 5f3a9c1e

Steps are compared as numbers, never as text: earlier versions padded them to eight digits. Whatever else lies in there
(notes, links, directories of other names) belongs to somebody else, and is neither read as ours nor removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from dgt.runs import layout

FOLDER, MARKER = layout.CHECKPOINTS, layout.CHECKPOINTED  # within a run directory
COMMIT = "COMMIT"
DAMAGED, UNSOUND = f"{COMMIT}.damaged", f"{COMMIT}.unsound"  # what a record is renamed to that must not be used
DIGITS = 12
NAME = re.compile(r"(\d{8,})-[0-9a-f]{8}(-\d+)?", re.ASCII)


def name_of(step: int, attempt: str, again: int = 0) -> str:
    """`again` counts the earlier checkpoints of the same step: one that is committed is never written over."""
    return f"{step:0{DIGITS}d}-{attempt}" + (f"-{again + 1}" if again else "")


def step_of(name: str) -> int | None:
    """The step that a directory of this name holds; None if the name is not one of ours."""
    found = NAME.fullmatch(name)
    return int(found[1]) if found else None


def own(directory: Path) -> list[tuple[int, Path]]:
    """(step, path) of the directories with names of ours, lowest step first; links are somebody else's."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted((step, directory / name) for name in names if (step := step_of(name)) is not None)


def has(path: Path) -> bool:
    """Whether a file is there. Unlike pathlib's, this does not take a file system that fails for a missing file."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def set_aside(directory: Path) -> tuple[int, int]:
    """How many checkpoints were marked as damaged, and how many as unsound."""
    try:
        paths = [path for _, path in own(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    return sum(has(path / DAMAGED) for path in paths), sum(has(path / UNSOUND) for path in paths)


def holds_checkpoints(run_dir: Path) -> bool:
    """Whether a checkpoint was ever committed in this directory, as far as can be seen."""
    try:
        paths = [path for _, path in own(run_dir / FOLDER)]
    except (FileNotFoundError, NotADirectoryError):
        paths = []
    records = (path / name for path in paths for name in (COMMIT, DAMAGED, UNSOUND))
    return has(run_dir / MARKER) or any(map(has, records))


def prune(
    directory: Path, whole: Collection[tuple[int, Path]], new: Path, step: int, keep_last: int, keep_every: int
) -> list[str]:
    """Remove old checkpoints; returns what could not be removed, and why.

    `whole` are the (step, path) of those that could be read, the oldest first. Of these the last few up to this step
    stay, every so manyth, and the new one whatever happens. Leftovers of earlier steps that never were committed go; of
    this step they stay, as ranks that are ahead may be saving it once more. Later steps and everything whose record
    could not be read, or was renamed, stay: they may be all that somebody has.
    """
    ours = own(directory)
    up_to_now = [path for number, path in whole if number <= step and (number, path) in ours]
    kept = {new, *(up_to_now[-keep_last:] if keep_last else [])}
    kept |= {path for number, path in whole if keep_every and number % keep_every == 0}
    failed = []
    for number, path in ours:
        if number > step or path in kept:
            continue
        try:
            left_over = number < step and not any(has(path / name) for name in (COMMIT, DAMAGED, UNSOUND))
            if path in up_to_now or left_over:
                remove(path)
        except OSError as error:
            failed.append(f"{path.name} ({error.strerror or error})")
    return failed


def remove(path: Path) -> None:
    """COMMIT first, and its absence reaches the disk before anything else goes: half a checkpoint never looks whole."""
    (path / COMMIT).unlink(missing_ok=True)
    sync(path)
    shutil.rmtree(path)


def sync(folder: Path) -> None:
    """Names reach the disk apart from what they name."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class Once:
    """Says the first of several similar warnings."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._said = say, False

    def __call__(self, words: str) -> None:
        if not self._said:
            self._said = True
            with contextlib.suppress(OSError):
                self._say(words)
