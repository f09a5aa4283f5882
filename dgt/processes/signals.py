"""Signals before, between and after training: one line says what ended a process, whatever it is waiting for, and what
is decided stays so."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from dgt.errors import EXIT_STOPPED

ENDING = (signal.SIGTERM, signal.SIGUSR1)
PASSED_ON = (*ENDING, signal.SIGUSR2)
_trained = threading.Event()
_decided = threading.Event()


def say_when_ended(speaks: bool, tidy_up: Callable[[], None]) -> None:
    """From here until other handlers are set, SIGTERM, SIGUSR1, SIGHUP and Ctrl-C end this process in a line of words.

    A thread does it: Python's own handlers wait for the main thread to return from torch, which may take minutes; and
    torch goes on without numpy when a KeyboardInterrupt ends that import.
    """
    since = time.monotonic()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in ENDING:
        signal.signal(number, _leave_it_to_the_thread)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not ignored, as under nohup
        signal.signal(signal.SIGHUP, _leave_it_to_the_thread)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as it is in the background
        signal.signal(signal.SIGINT, _leave_it_to_the_thread)

    def watch() -> None:
        while True:
            number = os.read(reader, 1)[0]
            if signal.getsignal(number) is not _leave_it_to_the_thread or _decided.is_set():
                continue
            if speaks:
                words = f"ended by {signal.Signals(number).name} {time.monotonic() - since:.0f} s after the start"
                words += "" if _trained.is_set() else ", before there was anything to save"
                words = "interrupted" if number == signal.SIGINT else words
                with contextlib.suppress(OSError, ValueError):
                    print(f"dgt: {words}", file=sys.stderr, flush=True)
            with contextlib.suppress(Exception):
                tidy_up()
            os._exit(EXIT_STOPPED if number == signal.SIGUSR1 else 128 + number)

    threading.Thread(target=watch, daemon=True).start()


def _leave_it_to_the_thread(number: int, frame: object) -> None:
    """A handler must be there for the thread to hear of the signal."""


def interrupt_as_usual() -> None:
    """Ctrl-C is a KeyboardInterrupt again: everything is imported."""
    if signal.getsignal(signal.SIGINT) is _leave_it_to_the_thread:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def training_began() -> None:
    """From here on a signal does not come before there was anything to save."""
    _trained.set()


def outcome_is_known() -> None:
    """How this process ends is decided; a signal that comes while it leaves does not change its exit code."""
    _decided.set()


def leave_undisturbed() -> None:
    """The last thing before the end: Python takes its handlers away while it shuts down, and the system's default for a
    signal would replace the exit code."""
    outcome_is_known()
    for number in (*PASSED_ON, signal.SIGINT):
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(number, signal.SIG_IGN)
