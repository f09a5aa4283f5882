"""Signals outside of the training loop: SIGTERM, SIGUSR1, SIGHUP and Ctrl-C end the process with one line on standard
error and the right exit code, also while the main thread is inside a call of torch that does not return to Python.

While training, `Node.stop_on_signals` sets handlers of its own, which ask all ranks to stop at the same step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from dgt.errors import EXIT_STOPPED

log = logging.getLogger(__name__)
ENDING = (signal.SIGTERM, signal.SIGUSR1)
PASSED_ON = (*ENDING, signal.SIGUSR2)  # from the launcher to its ranks
_trained = threading.Event()
_exit_code_is_final = threading.Event()


def exit_on_signals(clean_up: Callable[[], None]) -> None:
    """Until other handlers are set, SIGTERM, SIGUSR1, SIGHUP and Ctrl-C log one line, clean up and exit the process.

    A thread does this, woken through `signal.set_wakeup_fd`: Python runs its own handlers in the main thread, which may
    be inside torch for minutes; and a KeyboardInterrupt while torch imports numpy leaves a torch without numpy.
    """
    since = time.monotonic()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in ENDING:
        signal.signal(number, _handled_by_thread)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not ignored, as under nohup
        signal.signal(signal.SIGHUP, _handled_by_thread)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in a background job
        signal.signal(signal.SIGINT, _handled_by_thread)

    def watch() -> None:
        while True:
            number = os.read(reader, 1)[0]
            if signal.getsignal(number) is not _handled_by_thread or _exit_code_is_final.is_set():
                continue
            log.info("%s", "interrupted" if number == signal.SIGINT else _ended_by(number, time.monotonic() - since))
            with contextlib.suppress(Exception):
                clean_up()
            os._exit(EXIT_STOPPED if number == signal.SIGUSR1 else 128 + number)

    threading.Thread(target=watch, daemon=True).start()


def _ended_by(number: int, seconds: float) -> str:
    unsaved = "" if _trained.is_set() else ", before there was anything to save"
    return f"ended by {signal.Signals(number).name} {seconds:.0f} s after the start{unsaved}"


def _handled_by_thread(number: int, frame: object) -> None:
    """Empty: Python writes a signal's number to the wakeup descriptor only if the signal has a Python handler."""


def restore_keyboard_interrupt() -> None:
    """Ctrl-C raises KeyboardInterrupt again; called when all imports are done."""
    if signal.getsignal(signal.SIGINT) is _handled_by_thread:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def training_began() -> None:
    """From here on the line about a signal no longer adds that there was nothing to save."""
    _trained.set()


def keep_exit_code() -> None:
    """The exit code is decided: the thread of `exit_on_signals` ignores signals that arrive from here on."""
    _exit_code_is_final.set()


def ignore_signals() -> None:
    """Called last before the process exits: Python removes its handlers while it shuts down, and then the default
    action of a late signal would replace the exit code."""
    keep_exit_code()
    for number in (*PASSED_ON, signal.SIGINT):
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(number, signal.SIG_IGN)
