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
INSIST_SECONDS = 8.0


def say_when_ended(speaks: bool, tidy_up: Callable[[], None]) -> None:
    """From here until other handlers are set, SIGTERM and SIGUSR1 end this process with a line on standard error.

    A thread does it: Python's own handlers wait for the main thread to return from torch, which may take minutes.
    """
    since = time.monotonic()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in ENDING:
        signal.signal(number, _leave_it_to_the_thread)

    def watch() -> None:
        while True:
            number = os.read(reader, 1)[0]
            if number == signal.SIGINT:
                later = threading.Timer(INSIST_SECONDS, _insist)
                later.daemon = True
                later.start()
            if number not in ENDING or signal.getsignal(number) is not _leave_it_to_the_thread:
                continue
            if speaks:
                words = f"ended by {signal.Signals(number).name} {time.monotonic() - since:.0f} s after the start"
                print(f"dgt: {words}, before there was anything to save", file=sys.stderr, flush=True)
            with contextlib.suppress(Exception):
                tidy_up()
            os._exit(EXIT_STOPPED if number == signal.SIGUSR1 else 128 + number)

    threading.Thread(target=watch, daemon=True).start()


def _leave_it_to_the_thread(number: int, frame: object) -> None:
    """A handler must be there for the thread to hear of the signal."""


def _insist() -> None:
    """Ctrl-C was long ago and ranks still run: the exception it raised fell into an `except` of torch's launcher.

    While ranks run the handler is that launcher's; everybody else may take the time they need.
    """
    if signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN):
        os.kill(os.getpid(), signal.SIGINT)
