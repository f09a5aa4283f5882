"""The warm process that forks every rank: started as early as possible, so that it imports torch while we do.

Imports nothing heavy itself: `dgt` starts it before anything else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import shutil
import signal
from pathlib import Path

from dgt.processes import environment

# by name, as nothing heavy is imported here; `warm` comes last: it ends the time in which signals are blocked
PRELOAD = [
    "dgt.launching.run", "dgt.commands.compare.job", "dgt.commands.bench.job", "dgt.commands.doctor.examination",
    "dgt.launching.warm",
]  # fmt: skip
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def start() -> None:
    """Make sure it runs, with the environment ranks should have."""
    environment.prepare_children(folder())
    multiprocessing.set_forkserver_preload(PRELOAD)
    # Both processes inherit that these signals are blocked, the forkserver until `warm` is imported: Ctrl-C must not
    # hit it in the middle of its imports, and Slurm signals every process of a job. What arrives here meanwhile is
    # delivered at the end: ignoring it in place of blocking would lose it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        multiprocessing.resource_tracker.ensure_running()  # unblocks some of them
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop() -> None:
    """End it at once: ranks still waiting to be forked would wake up to a launcher that is gone, and complain."""
    pid = _pid()
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ended_by() -> str:
    """What has ended it, in words; empty while it runs. It stays a zombie: multiprocessing looks at it too."""
    pid, found = _pid(), None
    if pid is not None and hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return ""
    if found.si_code == os.CLD_EXITED:
        return f"exit code {found.si_status}"
    return signal.Signals(found.si_status).name


def _pid() -> int | None:
    """Its number; it is a child of ours, so nobody else gets that number before we ask for its end."""
    return getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)


def folder() -> Path:
    """Where multiprocessing keeps the socket over which ranks are ordered."""
    return Path(multiprocessing.util.get_temp_dir())


def meeting_prefix() -> str:
    """How the folders begin in which ranks of this launcher meet: whoever tidies up knows them by it."""
    return f"dgt-{folder().name.rpartition('-')[2]}-"


def tidy_up(folder: Path) -> None:
    """Remove what a launcher that has ended leaves behind, given where its socket was."""
    for left in (*folder.parent.glob(f"dgt-{folder.name.rpartition('-')[2]}-*"), folder):
        shutil.rmtree(left, ignore_errors=True)


def end() -> None:
    """Stop it and tidy up: this process is about to end without Python's own way out."""
    stop()
    tidy_up(folder())
