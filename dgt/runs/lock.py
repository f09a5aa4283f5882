"""One run per directory: a lock on file systems that hosts share, which outlives no owner.

Locks of the kernel (flock) may be local to a host there, or missing. So every start that wants a directory puts a file
of its own into it, `.lock-<token>`, that says who it is; whoever then sees no other file has the directory:

    look at the others' files       an owner that lives is the reason to refuse
    make one's own, look again      of two that come at once the later one sees the other's: both withdraw, wait for a
                                    random time and begin again, so that never two and soon one has it
    mark it as held, touch it every `BEAT` seconds, remove it at the end

Names are never used twice, so removing the file of a dead owner cannot hit anybody else's. Dead is whose process is
gone from this host (pid and start time are compared, on the same boot and in the same pid namespace), or whose file has
not been touched for `SILENCE` seconds by our own clock: those of other hosts are never compared.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import secrets
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dgt.config.files import opened, parsed_json, read_text, write
from dgt.errors import AlarmError, TrainingError, printable
from dgt.runs.layout import LOCK_PREFIX

PREFIX = LOCK_PREFIX
BEAT = 5.0  # seconds between two signs of life
SILENCE = 60.0  # seconds without one after which an owner elsewhere counts as dead
PAUSE = 0.3
MOST_BYTES = 4096  # of a file
NO_LOCK = (errno.ENOENT, errno.EINVAL, errno.ENXIO, errno.ELOOP)  # gone; a pipe, folder or socket in its place
LATEST = 2.5e11  # seconds: the calendar ends in the year 9999


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a directory, or wants to."""

    host: str
    pid: int
    started: str
    """The process's start time as the kernel has it, and with it the place where pids mean the same; else empty."""
    user: str
    since: float
    run: str
    """The same on all ranks of one start of a run: a new rank 0 takes over from the one that was lost."""
    held: bool = False

    def __str__(self) -> str:
        if not self.pid:
            return "an unknown process"
        when = f"{datetime.fromtimestamp(self.since):%Y-%m-%d %H:%M:%S}"
        return f"pid {self.pid} on {self.host} (user {self.user}), since {when}"


NOBODY = Owner("an unknown host", 0, "", "unknown", 0.0, "", held=True)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another one that has the directory, or wants it."""

    owner: Owner
    lives: bool
    """Known to: its process is there, or it has moved while we looked. Else it may."""


@dataclass(slots=True)
class RunLock:
    """This process's claim to a directory; `attempt` until it is held, `release` at the end."""

    directory: Path
    run: str
    _token: str = field(default_factory=lambda: secrets.token_hex(8))
    _since: float = field(default_factory=time.time)
    _seen: dict[Path, tuple[object, float]] = field(default_factory=dict)
    _moved: set[Path] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _beaten: float = field(default_factory=time.time)
    _lost_to: Owner | None = None

    @property
    def path(self) -> Path:
        return self.directory / f"{PREFIX}{self._token}"

    def attempt(self) -> Rival | None:
        """Take the directory; if there are others, one of them. `OSError` where nothing can be written.

        Whoever cannot be seen from here is watched: ask again until it lives, or the directory is ours.
        """
        rivals = self._rivals()
        if not rivals:
            self._write(held=False)
            rivals = self._rivals()
            if not rivals:
                self._write(held=True)
                self._beaten = time.time()
                self._thread = threading.Thread(target=self._beat, name="dgt-lock", daemon=True)
                self._thread.start()
                return None
            _remove(self.path)
            time.sleep(random.SystemRandom().uniform(0.0, PAUSE))
        return max(rivals, key=lambda rival: rival.owner.held)

    def take_over(self) -> None:
        """Be the new rank 0 of the run that holds the directory; nobody waits for a rank that is lost."""
        while self._thread is None and (rival := self.attempt()) is not None:
            if rival.owner.held:
                raise AlarmError(f"run_dir={self.directory}: held by another run, {rival.owner}")

    def release(self) -> None:
        """Let others have it; does nothing where it is not held."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(BEAT)
            if self._lost_to is None:
                _remove(self.path)
            self._thread, self._stop, self._lost_to = None, threading.Event(), None  # it may be held again later

    def check(self) -> None:
        """Raise if the directory was lost, as after a pause that was taken for death: two must not write there."""
        if self._thread is not None and self._was_silent():  # and the thread that beats may not have come to it yet
            self._show_life()
        if self._lost_to is not None:
            kind = TrainingError if self._lost_to.run == self.run else AlarmError
            raise kind(
                f"run_dir={self.directory}: taken over by {self._lost_to}; this run ends, and saves nothing more"
            )

    def _rivals(self) -> list[Rival]:
        """Everybody else who lives, or may; files of the dead, and of lost ranks of this run, are removed."""
        own, found = _self(self.run, self._since), []
        for path, owner in self._others():
            if own.started and (owner.pid, owner.started) == (own.pid, own.started):
                continue  # another one of this process
            lives, silent = _lives(owner), self._silent(path)
            if owner.run == self.run or lives is False or (lives is None and silent):
                _remove(path)
            else:
                found.append(Rival(owner, lives or path in self._moved))
        return found

    def _others(self) -> list[tuple[Path, Owner]]:
        paths = [self.directory / name for name in os.listdir(self.directory) if name.startswith(PREFIX)]
        read = [(path, _read(path)) for path in paths if path != self.path and not path.suffix]
        return [(path, owner) for path, owner in read if owner is not None]

    def _silent(self, path: Path) -> bool:
        """Whether a file was not touched for so long, as seen from here. Opening it has a network file system ask."""
        try:
            sign = _sign(path)
        except OSError:
            return False
        before, since = self._seen.setdefault(path, (sign, time.monotonic()))
        if before != sign:
            self._moved.add(path)
        return path not in self._moved and time.monotonic() > since + SILENCE

    def _write(self, held: bool) -> None:
        """All of it or nothing; the draft's name does not begin with `PREFIX`, so that it is no lock."""
        write(self.path, json.dumps(asdict(_self(self.run, self._since)) | {"held": held}) + "\n")

    def _beat(self) -> None:
        stop = self._stop
        while not stop.wait(BEAT):
            self._show_life()

    def _was_silent(self) -> bool:
        """So long that others may have taken the directory; by the wall clock, which goes on while a host sleeps."""
        return abs(time.time() - self._beaten) >= SILENCE

    def _show_life(self) -> None:
        try:
            os.utime(self.path)
            self._beaten = time.time()
        except FileNotFoundError:
            self._come_back()
        except OSError:
            pass  # no answer now: others see as little of it

    def _come_back(self) -> None:
        """Its file is gone: with the whole directory, which is made again, or because this process seemed dead."""
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            holders = [owner for _, owner in self._others() if owner.held and _lives(owner) is not False]
            if not holders and not self._was_silent():
                self._write(held=True)
                self._beaten = time.time()
            elif self._lost_to is None:
                self._lost_to = holders[0] if holders else NOBODY  # who took it may have ended meanwhile


def holder(directory: Path) -> Owner | None:
    """Who holds the directory, as far as can be seen: not one whose process is gone from this host."""
    paths = [path for path in directory.glob(f"{PREFIX}*") if not path.suffix]
    owners = [owner for path in sorted(paths) if (owner := _read(path)) is not None]
    return next((owner for owner in owners if owner.held and _lives(owner) is not False), None)


def _self(run: str, since: float) -> Owner:
    return Owner(socket.gethostname(), os.getpid(), _started(os.getpid()), _user(), since, run)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _read(path: Path) -> Owner | None:
    """Who left this file; somebody unknown if it does not say so, None if it is gone, or no file at all."""
    try:
        found: dict[str, Any] = parsed_json(read_text(path, MOST_BYTES))
        kinds = {"host": str, "pid": int, "started": str, "user": str, "since": float, "run": str, "held": bool}
        owner = Owner(**{name: kind(found[name]) for name, kind in kinds.items()})
        if not 0 <= owner.since < LATEST or not 0 < owner.pid < 2**31:
            return NOBODY
        return replace(owner, host=printable(owner.host)[:80], user=printable(owner.user)[:80])
    except OSError as error:
        return None if error.errno in NO_LOCK else NOBODY
    except (ValueError, KeyError, TypeError, OverflowError):
        return NOBODY


def _sign(path: Path) -> tuple[int, bytes]:
    try:
        with opened(path) as file:
            return os.fstat(file.fileno()).st_mtime_ns, file.read(MOST_BYTES)
    except PermissionError:  # another user's; that it is touched can be seen all the same
        return path.stat().st_mtime_ns, b""


def _lives(owner: Owner) -> bool | None:
    """Whether a process of this host is still there; None where that cannot be seen from here."""
    place = _place()
    if not place or not owner.started.endswith(place):
        return None
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's
    started = _started(owner.pid)
    return started == owner.started if started else None


def _started(pid: int) -> str:
    """When a process began, in ticks since the boot named with it; a zombie has ended. Empty if /proc cannot tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return f"ended {_place()}" if fields[0] in "ZX" else f"{fields[19]} {_place()}"


def _place() -> str:
    """Where a pid means the same process: this boot of this machine, and this pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _user() -> str:
    with contextlib.suppress(ImportError, KeyError):
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid()) if sys.platform != "win32" else "unknown"
