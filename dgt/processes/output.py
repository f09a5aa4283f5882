"""Standard output and error of the `dgt` command: where the lines of `logging.getLogger("dgt")` go, and failed writes.

`log_to_stderr` installs the handler that prints `dgt: message`; only the command and the ranks it starts call it, so a
library user's own logging configuration decides in every other program. `ignore_write_errors` keeps a run alive when
its log is on a full disk, its pipe is closed or its terminal is gone. Commands that only print keep Python's own
standard output, and fail if it does.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

STREAMS = ("stdin", "stdout", "stderr")
# extra= of a log record
VERBATIM = {"verbatim": True}  # printed as it is: the traceback of another process, for example
EVERY_RANK = {"every_rank": True}  # printed by ranks other than 0 too: it is about this process alone
log = logging.getLogger(__name__)


class StderrHandler(logging.Handler):
    """`dgt: message` on whatever `sys.stderr` is at that moment, `dgt: error: message` from ERROR on.

    A record that cannot be written is dropped: no line of the log may end a run.
    """

    is_main = True

    def filter(self, record: logging.LogRecord) -> bool:
        """All ranks log the same notices, which rank 0 prints; others print errors and records marked EVERY_RANK."""
        return self.is_main or record.levelno >= logging.ERROR or getattr(record, "every_rank", False)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(self.format(record), file=sys.stderr, flush=True)

    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, "verbatim", False):
            return record.getMessage()
        return f"dgt: {'error: ' if record.levelno >= logging.ERROR else ''}{record.getMessage()}"


def log_to_stderr(is_main: bool) -> None:
    """Print what dgt logs on standard error: from INFO on if this process is rank 0, else from ERROR on.

    Calling it again, with another `is_main`, changes what is printed from then on.
    """
    logger = logging.getLogger("dgt")
    handler = next((found for found in logger.handlers if isinstance(found, StderrHandler)), None)
    if handler is None:
        handler = StderrHandler()
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False  # a script under `dgt run` may configure the root logger: no line twice
    handler.is_main = is_main


def rank_changed(is_main: bool) -> None:
    """This process has another rank than before; without the handler of `log_to_stderr` there is nothing to do."""
    if any(isinstance(handler, StderrHandler) for handler in logging.getLogger("dgt").handlers):
        log_to_stderr(is_main)


class Stream(io.FileIO):
    """A standard stream that remembers why it failed; with `drops`, bytes that cannot be written are discarded."""

    def __init__(self, descriptor: int, drops: bool, failed: Callable[[OSError], None]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._drops, self._failed = drops, failed
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
            if written is not None or not self._drops:  # None: a full pipe in non-blocking mode
                return written
        except OSError as error:
            first, self.error = self.error is None, error
            if not self._drops:
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


def ignore_write_errors(stdout: bool = True) -> None:
    """From here on printing raises no OSError; with `stdout=False` this holds for standard error only."""
    if sys.__stderr__ in (None, sys.stderr):  # else a test or a library has replaced it
        sys.stderr = _wrapped(sys.stderr, 2, True, lambda error: None)
    if sys.__stdout__ in (None, sys.stdout):
        sys.stdout = _wrapped(sys.stdout, 1, stdout, _log_failure)


def _wrapped(stream: TextIO, descriptor: int, drops: bool, failed: Callable[[OSError], None]) -> TextIO:
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    try:
        raw = Stream(descriptor, drops, failed)
    except OSError:  # a directory, or closed meanwhile
        return stream
    encoding, errors = getattr(stream, "encoding", None) or "utf-8", getattr(stream, "errors", None) or "strict"
    lines = descriptor == 2 or raw.isatty() or bool(getattr(stream, "line_buffering", False))
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=lines)


def failure() -> OSError | None:
    """Why standard output failed, if it did."""
    return getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "error", None)


def _log_failure(error: OSError) -> None:
    log.warning("standard output: %s; the run goes on without it", error.strerror, extra=EVERY_RANK)


def redirect_to_null(descriptor: int = 1) -> None:
    """Point a stream that failed to /dev/null: flushing its buffer at exit would raise the same error again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
