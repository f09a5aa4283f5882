"""Other processes, told apart from strangers: a number is given to somebody else once its process has ended.

And the other way round: a rank that must not outlive the process that started it.
"""

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
    """One process, by its number and the time at which it started."""

    pid: int
    started: str

    @classmethod
    def own(cls) -> Process:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Process:
        """Whoever has this number now."""
        return cls(pid, _started(pid))

    def write(self, path: Path) -> None:
        """Complete or not at all."""
        draft = path.with_name(f"draft-{path.name}")
        draft.write_text(f"{self.pid} {self.started}", encoding="utf-8")
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Process:
        pid, _, started = path.read_text(encoding="utf-8").partition(" ")
        return cls(int(pid), started)

    def send(self, number: int) -> bool:
        """Send a signal; False if the process has ended, whoever has its number now."""
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
        """Whether a signal has stopped it, and none has woken it since; False where the system does not say."""
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
        """A descriptor that stands for this very process; -1 where the system has none, None if it has ended.

        The start time is looked at after the descriptor was made: if it is still the right one, the process has had its
        number all the time.
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
    """A descriptor for the process that started this one, if it is `parent` and still there."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(parent)
        if os.getppid() == parent:  # it would be another one by now
            return handle
        os.close(handle)
    return None


def _started(pid: int) -> str:
    """When the process with this number started, in the system's own words; empty if there is none."""
    if Path("/proc/self/stat").exists():
        fields = _fields(pid)
        return fields[19] if fields else ""
    said = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return " ".join(said.stdout.split())


def _fields(pid: int) -> list[str]:
    """What /proc says of it, from its state on; nothing if there is no such process, or no /proc."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return []


def die_with_torchrun() -> None:
    """A rank must not outlive torchrun, however that ends; ranks of dgt's own launcher watch it themselves.

    Called as early as can be: a torchrun that went before is not noticed.
    """
    is_rank = environment.meeting_file() is None and environment.is_launched()
    if is_rank and environment.placement().launcher == "torchrun":
        die_with_parent()


def die_with_parent() -> None:
    """From here on the kernel kills this process when its parent ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
