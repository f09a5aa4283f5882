"""Imported once by the forkserver, which then forks every rank: what ranks need is already there.

The launcher starts the forkserver with signals blocked, so that it is not hit in the middle of these imports; those
that came meanwhile are dropped. From here on its children take the default: a rank ends at once and silently, at
whatever point of its start it is. Only SIGUSR2 is ignored: the launcher hears of it, and passes it on in its own words.
"""

import atexit
import os
import signal
import sys
from types import TracebackType

from dgt.launching import forkserver
from dgt.processes import environment, output


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tell an error, unless it is a rank forked just as its launcher went: the launcher's semaphores are gone then."""
    last = trace
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    inside = last.tb_frame.f_code.co_filename if last is not None else ""
    if not (kind is FileNotFoundError and inside.endswith("synchronize.py")):
        sys.__excepthook__(kind, error, trace)


def _ends_ranks_only(number: int, frame: object) -> None:
    """The forkserver itself goes on: it has to tell the launcher how its children ended."""
    if os.getpid() != FORKSERVER:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(signal.Signals(number))


# it ends after its launcher, however that went, and after all ranks, which do not come here
atexit.register(forkserver.tidy_up, environment.launchers_folder())
FORKSERVER = os.getpid()
for blocked in forkserver.BLOCKED:
    signal.signal(blocked, signal.SIG_IGN)  # drops those that are pending
signal.pthread_sigmask(signal.SIG_UNBLOCK, forkserver.BLOCKED)
signal.signal(signal.SIGINT, signal.SIG_DFL)
for ending in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(ending, _ends_ranks_only)
sys.excepthook = _tell
output.ignore_write_errors()  # ranks inherit it: no print of theirs may end a run
