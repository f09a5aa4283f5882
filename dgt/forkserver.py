"""The warm process that forks every rank: started as early as possible, so that it imports torch while we do.

Imports nothing heavy itself: `dgt` starts it before anything else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal

from dgt import world

PRELOAD = ["dgt.warm"]


def start() -> None:
    """Make sure it runs, with the environment ranks should have."""
    world.prepare_children()
    multiprocessing.set_forkserver_preload(PRELOAD)
    # Ctrl-C in the first seconds must not hit it in the middle of its imports
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    multiprocessing.forkserver.ensure_running()
    signal.signal(signal.SIGINT, handler)


def stop() -> None:
    """End it at once: ranks still waiting to be forked would wake up to a launcher that is gone, and complain."""
    pid = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
