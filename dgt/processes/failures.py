"""Why ranks ended: each failed rank writes a JSON file, and the root cause is chosen by the fields of all of them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dgt.config import files
from dgt.errors import EXIT_BAD_INPUT, EXIT_FAILED, ConfigError, PeerError, TrainingError, WireError, printable

EXPECTED = (ConfigError, PeerError, WireError, TrainingError)  # printed as one line; all others with a traceback
FOLDER = "failures"
MOST_NOTES = 10_000  # ranks
MOST_BYTES = 2**20  # of a note, traceback and all
LATEST = 2.5e11  # seconds: the calendar ends in the year 9999


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's reason to end."""

    rank: int
    kind: str
    """Name of the exception's class, or Stopped."""
    reason: str
    """The exception's message, in one line."""
    code: int
    """The process's exit code."""
    time: float
    host: str = ""
    traceback: str = ""
    second_hand: bool = False
    """Another rank has the reason: this one only knows that some rank is missing, or that others were asked to stop."""

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Failure:
        code = EXIT_BAD_INPUT if isinstance(error, ConfigError) else EXIT_FAILED
        trace = "" if isinstance(error, EXPECTED) else "".join(traceback.format_exception(error))
        reason = " ".join(str(error).split())
        second_hand = isinstance(error, PeerError) and not error.peers
        return cls(rank, type(error).__name__, reason, code, time.time(), socket.gethostname(), trace, second_hand)

    @property
    def is_peer_loss(self) -> bool:
        """Whether this rank failed because another was missing."""
        return self.kind == PeerError.__name__

    @property
    def line(self) -> str:
        """What is printed: the message, with rank and exception class if it is one that dgt does not raise itself."""
        return f"rank {self.rank}: {self.kind}: {self.reason}" if self.traceback else self.reason

    def write(self, folder: Path) -> None:
        """Atomically, through a draft that is renamed: a launcher may kill this rank at any moment."""
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"draft-{self.rank}"
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        draft.replace(folder / f"rank-{self.rank:05d}.json")

    def write_for_torchrun(self, path: Path) -> None:
        """Write an error file in torchrun's format, so that its report ends with this reason.

        torchrun takes the earliest for the root cause, in whole seconds: the loss of a peer is dated a second later.
        """
        extra = {"timestamp": str(int(self.time) + self.is_peer_loss)}
        if self.traceback:
            extra["py_callstack"] = self.traceback
        path.write_text(json.dumps({"message": {"message": self.line, "extraInfo": extra}}), encoding="utf-8")


def notes(folder: Path) -> list[Failure]:
    """The notes that ranks wrote to `folder`, by rank."""
    return [_read(path) for path in sorted(folder.glob(f"rank-{5 * '[0-9]'}.json"))[:MOST_NOTES]]


def _read(path: Path) -> Failure:
    try:
        return read_note(path)
    except (OSError, ValueError) as error:  # a damaged disk, a file of another program
        why = getattr(error, "strerror", None) or "damaged"
        reason = f"its note {printable(str(path))} cannot be read ({why})"
        written = path.lstat().st_mtime if os.path.lexists(path) else 0.0
        return Failure(
            int(path.stem[-5:]), PeerError.__name__, reason, EXIT_FAILED, written, "unknown host", second_hand=True
        )


def read_note(path: Path) -> Failure:
    """One rank's note; `ValueError` where it is damaged, `OSError` where it cannot be read."""
    found = files.parsed_json(files.read_text(path, MOST_BYTES))
    words = ("kind", "reason", "host", "traceback")
    if not isinstance(found, dict) or not all(isinstance(found.get(name, ""), str) for name in words):
        raise ValueError("not a note")
    rank, code, when, second_hand = (found.get(name) for name in ("rank", "code", "time", "second_hand"))
    if not isinstance(rank, int) or not isinstance(code, int) or not isinstance(when, int | float):
        raise ValueError("not a note")
    if rank < 0 or not 0 <= when < LATEST:
        raise ValueError("not a note")
    kind, reason, host = (printable(found.get(name, "")) for name in words[:3])
    trace = printable(found.get("traceback", ""), lines=True)
    return Failure(rank, kind, reason, code, when, host, trace, second_hand is True)  # older notes do not have it


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The earliest that is not the loss of a peer, else the earliest of a rank that knows which peer it lost."""
    others = [failure for failure in failures if not failure.is_peer_loss]
    return min(others or failures, key=lambda failure: (failure.second_hand, failure.time))


def of_run(run_dir: Path) -> list[Failure]:
    """The notes of the last start of this run; empty if it finished, or was killed before a rank could write one."""
    starts = sorted(path for path in (run_dir / FOLDER).glob("*/") if path.is_dir())
    return notes(starts[-1]) if starts and not _finished(run_dir, starts[-1:]) else []


def _finished(run_dir: Path, failed: Sequence[Path] = ()) -> bool:
    """Whether summary.json is newer than the `failed` starts: a finished run may be continued, and fail then."""
    summary = run_dir / "summary.json"
    return summary.exists() and all(summary.stat().st_mtime >= start.stat().st_mtime for start in failed)


def lines(run_dir: Path) -> list[str]:
    """A line per rank that wrote a note, and last the root cause."""
    found = of_run(run_dir)
    if not found and _finished(run_dir):
        return ["the run finished"]
    if not found:
        return ["no rank left a reason: the run goes on, has not begun, or was ended from outside (scancel, memory)"]
    by_rank = [f"rank {note.rank} on {note.host}, {time.ctime(note.time)}: {note.reason}" for note in found]
    cause = root_cause(found)
    return [*by_rank, *cause.traceback.splitlines(), f"first: {cause.line}"]


@contextlib.contextmanager
def noted(folder: Path, rank: int) -> Iterator[None]:
    """Write a note to `folder` if the block raises; an error of writing it must not replace the exception itself."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):
            Failure.of(rank, error).write(folder)
        raise
