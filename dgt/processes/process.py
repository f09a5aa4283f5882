"""Processes identified by pid and start time, since the system reuses pids; ranks that are killed with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dgt.processes import environment


@dataclass(frozen=True, slots=True)
class Process:
    """One process, by its pid and the time at which it started."""

    pid: int
    started: str

    @classmethod
    def own(cls) -> Process:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this pid now."""
        return cls(pid, _started(pid))

    def write(self, path: Path) -> None:
        """Atomically, through a draft that is renamed."""
        draft = path.with_name(f"draft-{path.name}")
        draft.write_text(f"{self.pid} {self.started}", encoding="utf-8")
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Process:
        pid, _, started = path.read_text(encoding="utf-8").partition(" ")
        return cls(int(pid), started)

    def send(self, number: int) -> bool:
        """Send a signal; False if the process has ended, even if another one has its pid now."""
        handle = self._handle()
        if handle is None:
            return False
        try:
            if handle < 0:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            if handle >= 0:
                os.close(handle)
        return True

    def is_stopped(self) -> bool:
        """Whether it is stopped (SIGSTOP, state T in /proc); False without /proc."""
        fields = _fields(self.pid)
        return bool(fields) and fields[0] == "T" and fields[19] == self.started

    def wait(self) -> None:
        """Sleep until it has ended."""
        handle = self._handle()
        if handle is not None and handle >= 0:
            select.select([handle], [], [])
            os.close(handle)
        while handle is not None and handle < 0 and _started(self.pid) == self.started:
            time.sleep(1)

    def _handle(self) -> int | None:
        """A pidfd of this process; -1 if the system has no pidfds, None if the process has ended.

        The start time is compared after the pidfd is open: if it is right then, the pid was not reused before.
        """
        handle = -1
        if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            try:
                handle = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return None
            except OSError:  # an old kernel, no descriptors left
                pass
        if _started(self.pid) == self.started:
            return handle
        if handle >= 0:
            os.close(handle)
        return None


def parent_handle(parent: int) -> int | None:
    """A pidfd of the parent process, if it still has the pid `parent`."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(parent)
        if os.getppid() == parent:  # else the parent has ended, and the pid may be another process
            return handle
        os.close(handle)
    return None


def _started(pid: int) -> str:
    """The start time of the process with this pid, as /proc or ps prints it; empty if there is none."""
    if Path("/proc/self/stat").exists():
        fields = _fields(pid)
        return fields[19] if fields else ""
    listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return " ".join(listed.stdout.split())


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if there is no such process, or no /proc."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return []


def die_with_torchrun() -> None:
    """Have the kernel kill this rank when torchrun ends, even by SIGKILL; ranks of dgt's launcher have a thread for it.

    Called as early as possible: a torchrun that ended before the call is not noticed.
    """
    is_rank = environment.store_file() is None and environment.is_launched()
    if is_rank and environment.placement().launcher == "torchrun":
        die_with_parent()


def die_with_parent() -> None:
    """From here on the kernel kills this process when its parent ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
