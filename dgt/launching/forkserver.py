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
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def start() -> None:
    """Make sure it runs, with the environment ranks should have."""
    world.prepare_children()
    multiprocessing.set_forkserver_preload(PRELOAD)
    # Ctrl-C in the first seconds must not hit it in the middle of its imports. Slurm signals every process of a job:
    # without this one nobody would learn how the ranks end
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    multiprocessing.forkserver.ensure_running()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def stop() -> None:
    """End it at once: ranks still waiting to be forked would wake up to a launcher that is gone, and complain."""
    pid = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
