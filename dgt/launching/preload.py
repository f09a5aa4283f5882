"""Imported last by the forkserver: sets the signal handlers, excepthook and streams that all forked ranks inherit.

The launcher starts the forkserver with signals blocked, so that none ends it during its imports; those that are pending
are dropped here. From then on SIGINT, SIGTERM and SIGUSR1 end a forked rank by default, without a traceback, also while
it is starting. SIGUSR2 is ignored: the launcher receives it too, and sends the ranks SIGUSR1.
"""

import atexit
import gc
import os
import signal
import sys
from types import TracebackType

from dgt.launching import forkserver
from dgt.processes import environment, output


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback, except that of a rank forked just after its launcher ended and removed its semaphores."""
    last = trace
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    inside = last.tb_frame.f_code.co_filename if last is not None else ""
    if not (kind is FileNotFoundError and inside.endswith("synchronize.py")):
        sys.__excepthook__(kind, error, trace)


def _end_forked_ranks(number: int, frame: object) -> None:
    """Default action in forked ranks; none in the forkserver, which must report their exit codes to the launcher."""
    if os.getpid() != FORKSERVER:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(signal.Signals(number))


# the forkserver ends after its launcher, even a killed one, and after all ranks, whose exit runs no atexit handlers
atexit.register(forkserver.remove_files, environment.launcher_folder())
FORKSERVER = os.getpid()
for blocked in forkserver.BLOCKED:
    signal.signal(blocked, signal.SIG_IGN)  # discards those that are pending
signal.pthread_sigmask(signal.SIG_UNBLOCK, forkserver.BLOCKED)
signal.signal(signal.SIGINT, signal.SIG_DFL)
for ending in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(ending, _end_forked_ranks)
sys.excepthook = _excepthook
gc.freeze()  # what is imported: collecting it would copy its memory into every rank, and take half a second
output.ignore_write_errors()  # inherited by ranks: a failing print must not end a run
