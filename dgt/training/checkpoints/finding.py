"""Which checkpoint a run goes on from, found together by all ranks; and when it may begin at 0.

What cannot be read is not damaged: a mount may be late, a server away. All ranks try again for `PATIENCE` seconds, then
refuse, and nothing was renamed, removed or written. Damage is what was read twice and is wrong both times: such a
checkpoint is marked (COMMIT becomes COMMIT.damaged) and the one before it is used.

resume=auto begins at 0 only where no checkpoint was ever committed:

    a new or empty directory, or leftovers of checkpoints that never got a COMMIT      begins at 0
    a run killed before its first COMMIT: metrics, but no marker and no summary        begins at 0
    the marker that rank 0 leaves in the run directory with its first COMMIT           refused, after `PATIENCE`
    the summary of a finished run of a kind that keeps checkpoints                     refused, after `PATIENCE`
    records marked as damaged or unsound, and no other                                 refused

The marker lies in the run directory and not in `checkpoints/`, which may be a link, or a mount that is empty at first.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dgt.config import Config
from dgt.config.files import read_text
from dgt.errors import ConfigError, DamagedError, SharedError, printable
from dgt.processes.agreement import broadcast_text, share_trouble
from dgt.processes.node import Node
from dgt.runs import folders
from dgt.runs.folders import COMMIT, DAMAGED, FOLDER, MARKER
from dgt.runs.layout import SUMMARY
from dgt.training.checkpoints import files as checkpoint
from dgt.training.checkpoints.files import Commit, Read, in_words, twice

PATIENCE = 60.0  # seconds for a file system that does not answer, or does not show what should be there
PAUSE = 1.0
MOST_MARKER = 4096  # bytes
ELSEWHERE = "to begin at iteration 0 choose another directory"
Say = Callable[[str], None]


def source_of(config: Config) -> Path | None:
    """The directory to resume from: a single checkpoint, or one that holds several; None to start anew."""
    if config.resume == "none":
        return None
    if config.resume == "auto":
        return Path(str(config.run_dir)) / FOLDER
    path = Path(config.resume)
    try:
        if folders.has(path / COMMIT):
            return path
        folder = path / FOLDER if folders.has(path / FOLDER) else path
        if not any(folders.has(entry / COMMIT) for entry in folder.iterdir()):
            raise FileNotFoundError
    except (FileNotFoundError, NotADirectoryError):
        words = "no complete checkpoint there; give a run or checkpoint directory"
        raise ConfigError(f"resume={config.resume}: {words}") from None
    except OSError as error:
        raise ConfigError(f"resume={config.resume}: cannot be read ({in_words(error)})") from None
    return folder


def last_commit(config: Config) -> Commit | None:
    """What would be resumed from, if it is whole; None to start anew, `OSError` where that cannot be seen now."""
    source = None if config.warm_start else source_of(config)
    if source is None:
        return None
    try:
        commits, _ = _candidates(source, config.resume, lambda: evidence_in(config))
    except DamagedError:
        return None
    return commits[-1] if commits else None


def once_committed(run_dir: Path, keeps: bool = True) -> str:
    """What shows that this run has had a checkpoint; empty if nothing does. `keeps`: whether its kind keeps any."""
    if folders.has(run_dir / MARKER):
        return _said_by(run_dir / MARKER) or f"{MARKER} is there: this run has had a checkpoint"
    if keeps and folders.has(run_dir / SUMMARY):
        return "This run has finished, and kept checkpoints"
    return ""


def evidence_in(config: Config) -> str:
    """The same for the run that a config names."""
    return once_committed(Path(str(config.run_dir)), keeps=bool(config.checkpoint.keep_last))


def _said_by(marker: Path) -> str:
    """The words of the marker; empty where it has none, as on a disk that was full, or is no file."""
    try:
        return printable(read_text(marker, MOST_MARKER, errors="replace").strip().rstrip("."))[:120]
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EFBIG):
            return ""
        raise


def find(
    node: Node,
    source: Path | None,
    name: str,
    say: Say,
    use: Callable[[Commit], str],
    evidence: Callable[[], str] = str,
) -> Commit | None:
    """The last checkpoint in rank 0's `source` that all ranks could use; `use` says what is wrong with one.

    None if a run that is resumed automatically may begin at 0; `evidence` says why it may not.
    """

    def look() -> tuple[list[Commit], list[str]]:
        return _candidates(source, name, evidence) if source is not None else ([], [])

    found, damage = read_by_all(node, look, f"resume={name}", say)
    commits, wrong = found or ([], [f"{source.name if source else name}: {damage}"])
    for words in wrong:
        say(f"checkpoint {words}; not used")
    while True:
        newest = commits.pop() if commits else None
        path = broadcast_text(node, str(newest.path) if newest else "")
        if not path:
            missing = node.is_main and (wrong or name != "auto")
            hint = f"; {ELSEWHERE}" if name == "auto" else ""
            share_trouble(node, f"resume={name}: no checkpoint there is whole{hint}" if missing else "")
            return None
        commit, damage = read_by_all(node, partial(checkpoint.read_commit, Path(path)), f"checkpoint {path}", say)
        if commit is not None and not damage:
            damage = use(commit)
            if not damage:
                return commit
        wrong = [damage]
        if node.is_main and name == "auto":
            # it must not count among the last few that are kept; where it cannot be renamed it does
            with contextlib.suppress(OSError):
                (Path(path) / COMMIT).rename(Path(path) / DAMAGED)
        say(f"checkpoint {Path(path).name}: {damage}; going back to the one before")


def _candidates(path: Path, name: str = "", evidence: Callable[[], str] = str) -> tuple[list[Commit], list[str]]:
    """Everything committed there, oldest first, and what is wrong with the rest; `OSError` if more should be there."""
    if folders.has(path / COMMIT):
        return [checkpoint.read_commit(path)], []
    commits, wrong = checkpoint.committed(path)
    if commits or wrong or name != "auto":
        return commits, wrong
    damaged, unsound = folders.set_aside(path)
    if damaged or unsound:
        marked = " and ".join(
            f"{count} marked as {word}" for count, word in ((damaged, "damaged"), (unsound, "unsound")) if count
        )
        raise ConfigError(f"resume=auto: {path} holds no checkpoint that can be used, {marked}; {ELSEWHERE}")
    words = evidence()
    if words:
        raise FileNotFoundError(f"{words}, and {path} holds none now")
    return [], []


def read_by_all(node: Node, read: Callable[[], Read], where: str, say: Say) -> tuple[Read | None, str]:
    """What `read` finds on this rank, and the first rank's words of damage, if any rank found some.

    `OSError` on any rank has all of them try again, each until it succeeds; after `PATIENCE` they refuse together.
    """
    rounds = max(1, round(PATIENCE / PAUSE))
    found: list[Read] = []
    damage = ""
    for number in range(rounds + 1):
        trouble = refusal = ""
        if not found and not damage:
            try:
                found.append(twice(read))
            except DamagedError as error:
                damage = str(error)
            except ConfigError as error:
                refusal = str(error)
            except OSError as error:
                trouble = _missing(error)
        share_trouble(node, refusal)
        words = everybodys_trouble(node, trouble)
        if not words:
            break
        if number == rounds:
            earlier = "resume=CHECKPOINT takes an earlier one, " if where.startswith("checkpoint ") else ""
            raise SharedError(f"{where}: {words}; tried for {PATIENCE:g} s, nothing was changed; {earlier}{ELSEWHERE}")
        if number == 0:
            say(f"{where}: {words}; trying again for {PATIENCE:g} s")
        time.sleep(PAUSE)
    return (found[0] if found else None), everybodys_trouble(node, damage)


def _missing(error: OSError) -> str:
    if error.errno is None:  # not the system's: `_candidates` says what is missing
        return str(error)
    name = f"{Path(str(error.filename)).name} " if error.filename else ""
    return f"{name}cannot be read ({in_words(error)})"


def everybodys_trouble(node: Node, trouble: str) -> str:
    """The first rank's trouble, known to all; empty if there is none."""
    try:
        share_trouble(node, trouble)
    except ConfigError as error:
        return str(error)
    return ""
