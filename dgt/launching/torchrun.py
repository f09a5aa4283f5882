"""Ending torchrun from a rank: it restarts ranks that were asked to stop, and may block for ever if a host is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from dgt.processes import environment
from dgt.processes.process import parent_handle

UNREACHABLE_SECONDS = 8.0
RESTART_SECONDS = 660.0  # torchrun that may restart waits 600 s for the other hosts to come back
_parent = os.getppid()  # at import: after torchrun has ended, getppid() returns another process


def watch_agent() -> None:
    """Start the watchdog, which kills torchrun unless it exits by itself; for a rank that exits as a host is lost.

    torchrun reads its store before it exits, and blocks for ever if the store is on the other side of a broken link.
    """
    where = environment.placement()
    several_hosts = where.launcher == "torchrun" and where.local_size < where.size
    if several_hosts and environment.has_agent() and hasattr(os, "pidfd_open") and not where.local_rank:
        seconds = RESTART_SECONDS if environment.agent_may_restart() else UNREACHABLE_SECONDS
        handle = parent_handle(_parent)
        if handle is not None:
            command = [sys.executable, "-m", "dgt.launching.watchdog", str(handle), str(seconds), str(_parent)]
            subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, pass_fds=[handle])
            os.close(handle)


def stop_agent() -> None:
    """Send SIGTERM to a torchrun with restarts left: else it would restart ranks that have stopped and saved."""
    if environment.store_file() is not None or environment.placement().local_rank:
        return
    if not environment.agent_may_restart():
        return
    if hasattr(os, "pidfd_open"):
        handle = parent_handle(_parent)
        if handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGTERM)
            os.close(handle)
    elif os.getppid() == _parent:
        os.kill(_parent, signal.SIGTERM)
