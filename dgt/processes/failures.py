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

from dgt.checks import ConfigError, TrainingError
from dgt.notices import PeerError, WireError

EXPECTED = (ConfigError, PeerError, WireError, TrainingError)  # told in a line; else with a traceback
EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
EXIT_STOPPED = os.EX_TEMPFAIL  # 75: asked to stop, and ready to be resumed
FOLDER = "failures"


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
    return [_read(path) for path in sorted(folder.glob(f"rank-{5 * '[0-9]'}.json"))]


def _read(path: Path) -> Failure:
    try:
        return Failure(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:  # a damaged disk, somebody else's file
        reason = f"its note {path} cannot be read ({getattr(error, 'strerror', None) or 'damaged'})"
        written = path.stat().st_mtime
        return Failure(int(path.stem[-5:]), PeerError.__name__, reason, EXIT_FAILED, written, "unknown host")


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
    starts = sorted((run_dir / FOLDER).glob("*/"))
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
