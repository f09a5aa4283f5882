"""Being ended before there is anything to save: one line says so, whatever the process is waiting for."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from dgt.failures import EXIT_STOPPED

ENDING = (signal.SIGTERM, signal.SIGUSR1)


def say_when_ended(speaks: bool, tidy_up: Callable[[], None]) -> None:
    """From here until other handlers are set, SIGTERM, SIGUSR1 and Ctrl-C end this process with a line of words.

    A thread does it: Python's own handlers wait for the main thread to return from torch, which may take minutes; and
    torch goes on without numpy when a KeyboardInterrupt ends that import.
    """
    since = time.monotonic()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in ENDING:
        signal.signal(number, _leave_it_to_the_thread)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as it is in the background
        signal.signal(signal.SIGINT, _leave_it_to_the_thread)

    def watch() -> None:
        while True:
            number = os.read(reader, 1)[0]
            if signal.getsignal(number) is not _leave_it_to_the_thread:
                continue
            if speaks:
                words = f"ended by {signal.Signals(number).name} {time.monotonic() - since:.0f} s after the start"
                words = "interrupted" if number == signal.SIGINT else f"{words}, before there was anything to save"
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
