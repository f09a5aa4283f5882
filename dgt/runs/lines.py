"""Files of a run that grow line by line, and what is kept of them in memory: a few numbers, however long the run is.

    metrics = Lines(run_dir / "metrics.jsonl", say)
    metrics.write({"iteration": 30, "loss": 0.3})       never raises: what cannot be written now is written later

A disk may be full for a while, and somebody may remove the directory: the file that is open outlives its name, so that
all its lines can be written again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from dgt.config.files import appending, opened, parsed_json, replacing
from dgt.runs.folders import has

MOST_WAITING = 16 << 20  # bytes of lines that wait for room
COPY_BYTES = 1 << 20
LONGEST_LINE = 16 << 20  # bytes that are read of one
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
Record = dict[str, Any]


class Lines:
    """A file that grows line by line; what does not fit on a full disk waits for the next line."""

    def __init__(self, path: Path, say: Callable[[str], None], removed: Callable[[], None] = lambda: None) -> None:
        self.path, self._say, self._removed = path, say, removed
        self.file: BinaryIO | None = None
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._fits = True

    def write(self, record: Mapping[str, Any]) -> None:
        """The run does not end for want of a line."""
        line = (json.dumps(record) + "\n").encode()
        self._waiting.append(line)
        self._bytes += len(line)
        self._forget_the_oldest()
        self.flush()

    def flush(self) -> None:
        try:
            file = self._opened()
            while self._waiting:
                taken = file.write(self._waiting[0])
                self._bytes -= taken
                if taken < len(self._waiting[0]):
                    self._waiting[0] = self._waiting[0][taken:]
                else:
                    self._waiting.popleft()
        except OSError as error:
            if self._fits:
                why = f"{self.path.name}: {error.strerror or error}"
                self._say(f"{why}; the run goes on, and writes it later if it can")
            self._fits = False
            return
        if self._dropped:
            self._say(f"{self.path.name}: written again, without {self._dropped} lines that waited too long")
        self._fits, self._dropped = True, 0

    def _forget_the_oldest(self) -> None:
        """The first one waiting stays: a part of it may be in the file."""
        while self._bytes > MOST_WAITING and len(self._waiting) > 2:
            self._bytes -= len(self._waiting[1])
            del self._waiting[1]
            self._dropped += 1

    def _opened(self) -> BinaryIO:
        """The file under this name; made again, with everything that was in it, if somebody has removed it."""
        before, there = self.file, _identity(self.path)
        if before is not None and there == _identity(before.fileno()) != ():
            return before
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if before is not None and there == ():
            self._removed()
            with replacing(self.path) as after:
                _copy(before, after)
        self.file = cast(BinaryIO, self.path.open("a+b", buffering=0))
        if before is not None:
            with contextlib.suppress(OSError):
                before.close()
        return self.file

    def close(self) -> None:
        if self.file is not None or self._waiting:
            self.flush()
        if self.file is not None:
            try:
                self.file.close()
            except OSError as error:  # a network file system may only say now that there was no room
                self._say(f"{self.path.name}: {error.strerror}; its last lines may be missing")
            self.file = None


def _identity(file: Path | int) -> tuple[int, ...]:
    """What two names of one file have in common; nothing for one that is not there, or on a server that forgot it."""
    try:
        found = os.stat(file)
    except OSError as error:
        if error.errno in GONE:
            return ()
        raise
    return found.st_dev, found.st_ino


def _copy(before: BinaryIO, after: BinaryIO) -> None:
    """As much as can still be read: on some file systems a file's content goes with its name."""
    with contextlib.suppress(OSError):
        before.seek(0)
    while True:
        try:
            piece = before.read(COPY_BYTES)
        except OSError:
            return
        if not piece:
            return
        while piece:
            piece = piece[after.write(piece) :]


def records_in(path: Path) -> Iterator[tuple[Record, bytes]]:
    """Every record with its line; half a line, at the end of a run that crashed, ends it. None if there is no file."""
    if not has(path):
        return
    with opened(path) as file:
        while line := file.readline(LONGEST_LINE):
            try:
                record = parsed_json(line.decode())
                iteration = record["iteration"]
            except (ValueError, TypeError, KeyError):
                return
            if not isinstance(iteration, int):
                return
            yield record, line.rstrip(b"\n") + b"\n"


def cut(source: Path, path: Path, last_kept: int, superseded: Path | None = None) -> None:
    """Write the records of `source` up to that iteration to `path`, all at once; later ones go to `superseded`.

    So nothing that was measured is lost where a run goes on from before its last evaluation.
    """
    with replacing(path) as file:
        later = False
        for record, line in records_in(source):
            if record["iteration"] <= last_kept:
                file.write(line)
            else:
                later = True
        if later and superseded is not None:
            with appending(superseded) as log:
                log.writelines(line for record, line in records_in(source) if record["iteration"] > last_kept)


class Tail:
    """The last record, and the mean of some metrics over the last fifth of the iterations, to the last bit.

    Sums are kept exactly, as a few floats that do not overlap (Shewchuk, as in `math.fsum`), whatever their number.
    """

    def __init__(self, names: Sequence[str], iterations: int) -> None:
        self.last: Record = {}
        self._names, self._iterations = names, iterations
        self._start_at(iterations)

    def _start_at(self, iterations: int) -> None:
        self._start, self._count = 0.8 * iterations, 0
        self._sums = {name: ExactSum() for name in self._names}

    def read(self, path: Path, last_kept: int) -> None:
        """Begin anew with what a file has; where that run was longer than this one is to be, its last fifth counts."""
        self.last, last = {}, 0
        for record, _ in records_in(path):
            last = record["iteration"] if record["iteration"] <= last_kept else last
        self._start_at(max(self._iterations, last))
        for record, _ in records_in(path):
            if record["iteration"] <= last_kept:
                self.add(record)

    def add(self, record: Record) -> None:
        self.last = record
        if record["iteration"] < self._start:
            return
        self._count += 1
        for name in self._names:
            if isinstance(record.get(name), int | float):
                self._sums[name].add(record[name])

    def ended(self, path: Path) -> Tail:
        """Of a run that has ended with the last record, whose lines this file has: the last fifth of what it made."""
        tail = Tail(self._names, self.last["iteration"])
        tail.read(path, self.last["iteration"])
        tail.last = self.last
        return tail

    def means(self) -> dict[str, float]:
        """Of the metrics that every late record has."""
        return {
            name: total.value() / self._count for name, total in self._sums.items() if total.count == self._count > 0
        }


class ExactSum:
    """`math.fsum` of numbers that come one by one."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[float] = []
        self._not_finite = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        if not math.isfinite(value):
            self._not_finite += value
            return
        parts, value = [], float(value)
        for part in self._parts:
            if abs(value) < abs(part):
                value, part = part, value
            high = value + part
            low = part - (high - value)
            if low:
                parts.append(low)
            value = high
        self._parts = [*parts, value]

    def value(self) -> float:
        return self._not_finite if self._not_finite else math.fsum(self._parts)
