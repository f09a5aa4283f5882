"""The forkserver: a process that has imported torch and forks every rank, which then need not import it again.

`dgt` starts it before anything else, so that both processes import torch at the same time; this module therefore
imports nothing heavy itself.
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

# modules that the forkserver imports; `preload` comes last, because it unblocks signals
PRELOAD = [
    "dgt.launching.run", "dgt.commands.compare.job", "dgt.commands.bench.job", "dgt.commands.doctor.examination",
    "dgt.launching.preload",
]  # fmt: skip
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def start() -> None:
    """Start it unless it runs, with the environment variables that ranks inherit."""
    environment.prepare_children(folder())
    multiprocessing.set_forkserver_preload(PRELOAD)
    # Both new processes inherit the signal mask; the forkserver unblocks when `preload` is imported. Else Ctrl-C, and
    # Slurm's signals to every process of a job, would kill it during its imports. In this process blocked signals are
    # delivered when the mask is restored; with SIG_IGN they would be lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        multiprocessing.resource_tracker.ensure_running()  # it unblocks SIGINT and SIGTERM
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop() -> None:
    """Kill it: ranks that it forks after the launcher has ended would print tracebacks."""
    pid = _pid()
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ended_by() -> str:
    """The signal or exit code that ended it; empty while it runs. WNOWAIT leaves the zombie for multiprocessing."""
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
    """Its pid, which is not reused before this process, its parent, has waited for it."""
    return getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)


def folder() -> Path:
    """multiprocessing's temporary directory, with the socket of the forkserver."""
    return Path(multiprocessing.util.get_temp_dir())


def folder_prefix() -> str:
    """The beginning of names of this launcher's temporary directories, by which `remove_files` finds them."""
    return f"dgt-{folder().name.rpartition('-')[2]}-"


def remove_files(folder: Path) -> None:
    """Remove the temporary directories of a launcher that has ended, given the one of its socket."""
    for left in (*folder.parent.glob(f"dgt-{folder.name.rpartition('-')[2]}-*"), folder):
        shutil.rmtree(left, ignore_errors=True)


def stop_and_clean_up() -> None:
    """Kill it and remove all files: for a process that ends by `os._exit`, without atexit handlers."""
    stop()
    remove_files(folder())
