"""Standard output and error that never end a run: what cannot be written is dropped, and the run goes on.

`dgt train` and the ranks it starts use `spare_the_run`: a log on a full disk, a closed pipe or a terminal that is gone
is no reason to stop training. Commands that only print keep Python's own standard output, and fail if it does.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

STREAMS = ("stdin", "stdout", "stderr")


class Stream(io.FileIO):
    """A standard stream that remembers why it failed; where it `spares` the run, what cannot be written is dropped."""

    def __init__(self, descriptor: int, spares: bool, failed: Callable[[OSError], None]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._spares, self._failed = spares, failed
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
            if written is not None or not self._spares:  # None: a pipe that is full, and not waited for
                return written
        except OSError as error:
            first, self.error = self.error is None, error
            if not self._spares:
                raise
            if first:
                self._failed(error)
        return memoryview(data).nbytes


def open_missing() -> list[int]:
    """Open what was closed (`>&-`), so that no file or socket gets the number of a standard stream; returns which."""
    missing = []
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            missing.append(descriptor)
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            assert opened == descriptor
            os.set_inheritable(descriptor, True)
            if getattr(sys, STREAMS[descriptor]) is None:
                mode = "r" if descriptor == 0 else "w"
                setattr(sys, STREAMS[descriptor], open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    return missing


def spare_the_run(stdout: bool = True) -> None:
    """From here on nothing that is printed raises; with `stdout=False` this holds for standard error only."""
    if sys.__stderr__ in (None, sys.stderr):  # else somebody has put something of their own there
        sys.stderr = _wrapped(sys.stderr, 2, True, lambda error: None)
    if sys.__stdout__ in (None, sys.stdout):
        sys.stdout = _wrapped(sys.stdout, 1, stdout, _tell)


def _wrapped(stream: TextIO, descriptor: int, spares: bool, failed: Callable[[OSError], None]) -> TextIO:
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    try:
        raw = Stream(descriptor, spares, failed)
    except OSError:  # a directory, or closed meanwhile
        return stream
    encoding, errors = getattr(stream, "encoding", None) or "utf-8", getattr(stream, "errors", None) or "strict"
    lines = descriptor == 2 or raw.isatty() or bool(getattr(stream, "line_buffering", False))
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=lines)


def failure() -> OSError | None:
    """Why standard output failed, if it did."""
    return getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "error", None)


def _tell(error: OSError) -> None:
    say(f"standard output: {error.strerror}; the run goes on without it")


def say(words: str) -> None:
    """A line on standard error, if it can be written."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"dgt: {words}", file=sys.stderr, flush=True)


def silence(descriptor: int = 1) -> None:
    """What is still in the buffer of a stream that failed goes nowhere, in place of failing again at the exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
