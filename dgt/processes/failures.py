"""Why ranks ended: each leaves a note, and of all notes one is the reason behind the others."""

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

EXPECTED = (ConfigError, PeerError, WireError, TrainingError)  # told in a line; else with a traceback
FOLDER = "failures"
MOST_NOTES = 10_000  # ranks
MOST_BYTES = 2**20  # of a note, traceback and all
LATEST = 2.5e11  # seconds: the calendar ends in the year 9999


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's reason to end."""

    rank: int
    kind: str
    reason: str
    code: int
    time: float
    host: str = ""
    traceback: str = ""

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Failure:
        code = EXIT_BAD_INPUT if isinstance(error, ConfigError) else EXIT_FAILED
        trace = "" if isinstance(error, EXPECTED) else "".join(traceback.format_exception(error))
        reason = " ".join(str(error).split())
        return cls(rank, type(error).__name__, reason, code, time.time(), socket.gethostname(), trace)

    @property
    def line(self) -> str:
        return f"rank {self.rank}: {self.kind}: {self.reason}" if self.traceback else self.reason

    def write(self, folder: Path) -> None:
        """Complete or not at all: a launcher may end this rank at any moment."""
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"draft-{self.rank}"
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        draft.replace(folder / f"rank-{self.rank:05d}.json")

    def tell_torchrun(self, path: Path) -> None:
        """In the form of torchrun's error files, so that its report ends with this reason.

        It takes the earliest for the cause and counts in seconds: who only misses another rank comes a second later.
        """
        extra = {"timestamp": str(int(self.time) + (self.kind == PeerError.__name__))}
        if self.traceback:
            extra["py_callstack"] = self.traceback
        path.write_text(json.dumps({"message": {"message": self.line, "extraInfo": extra}}), encoding="utf-8")


def notes(folder: Path) -> list[Failure]:
    """What ranks wrote there, the first rank first."""
    return [_read(path) for path in sorted(folder.glob(f"rank-{5 * '[0-9]'}.json"))[:MOST_NOTES]]


def _read(path: Path) -> Failure:
    try:
        return read_note(path)
    except (OSError, ValueError) as error:  # a damaged disk, somebody else's file
        why = getattr(error, "strerror", None) or "damaged"
        reason = f"its note {printable(str(path))} cannot be read ({why})"
        written = path.lstat().st_mtime if os.path.lexists(path) else 0.0
        return Failure(int(path.stem[-5:]), PeerError.__name__, reason, EXIT_FAILED, written, "unknown host")


def read_note(path: Path) -> Failure:
    """One rank's note; `ValueError` where it is damaged, `OSError` where it cannot be read."""
    found = files.parsed_json(files.read_text(path, MOST_BYTES))
    words = ("kind", "reason", "host", "traceback")
    if not isinstance(found, dict) or not all(isinstance(found.get(name, ""), str) for name in words):
        raise ValueError("not a note")
    rank, code, when = (found.get(name) for name in ("rank", "code", "time"))
    if not isinstance(rank, int) or not isinstance(code, int) or not isinstance(when, int | float):
        raise ValueError("not a note")
    if rank < 0 or not 0 <= when < LATEST:
        raise ValueError("not a note")
    kind, reason, host = (printable(found.get(name, "")) for name in words[:3])
    return Failure(rank, kind, reason, code, when, host, printable(found.get("traceback", ""), lines=True))


def first(failures: Sequence[Failure], follows: str = "") -> Failure:
    """The reason behind the others: the earliest that is not another rank's absence, else who missed a neighbour.

    A reason with the word `follows` in it comes last: that rank only did what another had asked for.
    """
    reasons = [failure for failure in failures if failure.kind != PeerError.__name__]

    def is_hearsay(failure: Failure) -> bool:
        return (bool(follows) and follows in failure.reason) or (not reasons and "neighbour" not in failure.reason)

    return min(reasons or failures, key=lambda failure: (is_hearsay(failure), failure.time))


def of_run(run_dir: Path) -> list[Failure]:
    """Why the last start of this run failed, rank by rank; none if it finished, or was ended without a word."""
    starts = sorted(path for path in (run_dir / FOLDER).glob("*/") if path.is_dir())
    return notes(starts[-1]) if starts and not _finished(run_dir, starts[-1:]) else []


def _finished(run_dir: Path, failed: Sequence[Path] = ()) -> bool:
    """Whether it came to its end, and nothing failed later: a run that has finished may be made longer."""
    summary = run_dir / "summary.json"
    return summary.exists() and all(summary.stat().st_mtime >= start.stat().st_mtime for start in failed)


def in_words(run_dir: Path) -> list[str]:
    """A line per rank that left a note, and last the reason behind them."""
    found = of_run(run_dir)
    if not found and _finished(run_dir):
        return ["the run finished"]
    if not found:
        return ["no rank left a reason: the run goes on, has not begun, or was ended from outside (scancel, memory)"]
    lines = [f"rank {note.rank} on {note.host}, {time.ctime(note.time)}: {note.reason}" for note in found]
    cause = first(found)
    return [*lines, *cause.traceback.splitlines(), f"first: {cause.line}"]


@contextlib.contextmanager
def noted(folder: Path, rank: int) -> Iterator[None]:
    """Leave a note there if what is inside fails; a full disk must not hide the reason itself."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):
            Failure.of(rank, error).write(folder)
        raise
