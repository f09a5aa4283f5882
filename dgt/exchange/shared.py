"""Shared memory between ranks of one host: a rank publishes a message once, its neighbours read it in place.

A board is one file in memory: a header, then a framed message twice, for even and odd steps. Whoever publishes a step
signs on every neighbour's board, and the last to sign rings that neighbour's bell (a futex): a rank sleeps at most
once per step, whatever its degree, no core is kept busy, and a step costs one system call per edge at most.

Two buffers need no acknowledgement, because neighbours on a symmetric graph never drift further apart: i overwrites its
message of step t at step t+2, which it starts only after reading j's step t+1, and j publishes step t+1 only
after it has finished reading i's step t. The same holds for signatures, which have a place for even and odd steps too.

The owner holds a lock on its file; the kernel releases it with the process, so a dead neighbour is noticed. The lock is
taken through a descriptor of its own, which forked children close: a mapping that they inherit would keep it. Files
are unlinked as soon as the neighbours have opened them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import secrets
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import torch

from dgt.exchange import fences
from dgt.exchange.frames import Frame, frame_bytes
from dgt.processes import forks, limits

MEMORY = Path("/dev/shm")
PREFIX = "dgt-"
HEADER = 16384
TOKEN = 16
PUBLISHED, BELL, LEFT, SIGNATURES = 64, 128, 192, 256  # places in the header: 32-bit words on cache lines of their own
MOST_NEIGHBOURS = (HEADER - SIGNATURES) // 8
PAGE = 4096
LOOK_SECONDS = 0.2  # how often a waiting rank looks whether its neighbours still live
SYS_FUTEX, FUTEX_WAIT, FUTEX_WAKE = fences.FUTEX_CALL.get(platform.machine(), -1), 0, 1
EVERYBODY = 2**31 - 1


def available() -> bool:
    """Linux on x86-64 and ARM: a counter written last vouches for the message, by itself or by a fence."""
    return fences.is_known() and os.access(MEMORY, os.W_OK)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32,
)  # fmt: skip
_LOOK = _Timespec(0, int(LOOK_SECONDS * 1e9))
_LOOK_POINTER = ctypes.addressof(_LOOK)


class Board:
    """A mapped file: header and buffers; made by its owner with `create`, opened by neighbours with `look`."""

    def __init__(self, file: int, like: torch.Tensor) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)
        size = frame_bytes(like)
        self._map = mmap.mmap(file, HEADER + 2 * _padded(size))
        self._header = memoryview(self._map)
        self._words = np.frombuffer(self._map, dtype=np.uint32, count=HEADER // 4)
        self._bell = self._words.ctypes.data + BELL
        self.frames = [
            Frame(
                torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=HEADER + turn * _padded(size)), like
            )
            for turn in (0, 1)
        ]
        self.buffers = [frame.payload for frame in self.frames]

    def has(self, step: int) -> bool:
        """Whether its owner has published this step."""
        return int(self._words[PUBLISHED // 4]) > step

    @property
    def steps_at_leaving(self) -> int | None:
        """How many steps its owner made, once it has left the network in good order."""
        left = int(self._words[LEFT // 4])
        return left - 1 if left else None

    def count(self, place: int) -> int:
        """A word of its header."""
        return int(self._words[place // 4])

    def set_count(self, place: int, count: int) -> None:
        """Change a word that only this process changes, and wake all who sleep on it."""
        self._words[place // 4] = count
        _syscall(SYS_FUTEX, self._bell - BELL + place, FUTEX_WAKE, EVERYBODY, None, None, 0)

    def sleep(self, place: int, count: int) -> bool:
        """Sleep while a word is this; returns whether it is time to look who still lives."""
        asleep = _syscall(SYS_FUTEX, self._bell - BELL + place, FUTEX_WAIT, count, _LOOK_POINTER, None, 0)
        return bool(asleep != 0 and ctypes.get_errno() == errno.ETIMEDOUT)

    def owner_is_gone(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def trouble(self, place: int, step: int, late: bool) -> str:
        """Why its owner will not come to this step, by this word; empty if it has, or if there is still hope."""
        if self.count(place) > step:
            return ""
        has_left = self.steps_at_leaving is not None
        if fences.NEEDED:
            fences.fence()  # whoever sees that it has left sees what it did before
        if has_left and self.count(place) <= step:
            return "is gone (it has left)"
        if self.owner_is_gone() and self.count(place) <= step:
            return "is gone (its process ended)"
        return "timed out" if late else ""

    def expect(self, place: int, signatures: int) -> None:
        """Where this rank signs on the board, and how many sign there."""
        first = [SIGNATURES + turn * 4 * signatures for turn in (0, 1)]
        self._place = [start // 4 + place for start in first]
        self._signed = [self._header[start : start + 4 * signatures] for start in first]
        self._signatures = signatures

    def sign(self, step: int) -> None:
        """This rank has published the step."""
        self._words[self._place[step % 2]] = step + 1

    def ring_if_complete(self, step: int) -> None:
        """Wake the owner if all its neighbours have published the step."""
        if self._signed[step % 2] == (step + 1).to_bytes(4, sys.byteorder) * self._signatures:
            if fences.NEEDED:
                fences.fence()  # whoever sees the bell sees what was signed before it, and the messages behind that
            self._words[BELL // 4] = step + 1
            _syscall(SYS_FUTEX, self._bell, FUTEX_WAKE, 1, None, None, 0)


class OwnBoard(Board):
    """The owner's side, which knows the file's name until it is unlinked, and in time its neighbours' boards."""

    def __init__(self, file: int, like: torch.Tensor, path: Path) -> None:
        super().__init__(file, like)
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as the process lives
        os.dup2(lock, file, inheritable=False)  # the mapping has a descriptor of its own
        os.close(lock)
        forks.keep_from_children(file)
        self.path, self.token = path, secrets.token_bytes(TOKEN)
        self._map[:TOKEN] = self.token
        self.neighbours: dict[int, Board] = {}
        self._fence = threading.Lock()

    def unlink(self) -> None:
        """Nobody else needs to find it any more."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def release(self) -> None:
        """Give up the lock that says this rank lives, while its process goes on."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def leave(self, steps: int) -> None:
        """Tell neighbours who still wait that no message will follow."""
        self._words[LEFT // 4] = steps + 1

    def publish(self, step: int) -> None:
        """Say that the buffer of this step is complete; neighbours that have all they wait for wake up."""
        if fences.NEEDED:
            fences.fence()  # the message is there before the words that say so; what was read, before it is reused
        self._words[PUBLISHED // 4] = step + 1
        for board in self.neighbours.values():
            board.sign(step)
        # all signatures are visible before others' are read, else two last ones could miss each other: taking a lock
        # is a full memory barrier on x86-64
        if fences.NEEDED:
            fences.fence()
        else:
            with self._fence:
                pass
        for board in self.neighbours.values():
            board.ring_if_complete(step)

    def wait(self, step: int, timeout: float) -> tuple[int, str] | None:
        """Sleep until all neighbours have published this step; returns who did not, and why, or None."""
        since = time.monotonic()
        while (rung := int(self._words[BELL // 4])) <= step:
            asleep = _syscall(SYS_FUTEX, self._bell, FUTEX_WAIT, rung, _LOOK_POINTER, None, 0)
            if asleep == 0 or ctypes.get_errno() != errno.ETIMEDOUT:
                continue
            trouble = self._trouble(step, time.monotonic() > since + timeout)
            if trouble and self._words[BELL // 4] <= step:
                return trouble
            if all(board.has(step) for board in self.neighbours.values()):
                break  # whoever was to ring was killed, or stopped, after its message was complete
        if fences.NEEDED:
            fences.fence()  # no message is read before the bell was seen
        return None

    def _trouble(self, step: int, late: bool) -> tuple[int, str] | None:
        for peer, board in self.neighbours.items():
            words = board.trouble(PUBLISHED, step, late)
            if words:
                return peer, words
        return None


def create(like: torch.Tensor) -> OwnBoard | None:
    """A board for messages like this tensor, or None where there is not enough shared memory."""
    if not limits.has_spare():
        return None
    _sweep()
    path = MEMORY / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # all pages now: a full /dev/shm would otherwise end the process with SIGBUS at the first write
            os.posix_fallocate(file, 0, HEADER + 2 * _padded(frame_bytes(like)))
        except OSError:
            path.unlink()
            os.close(file)
            return None
    except OSError:
        return None
    return OwnBoard(file, like, path)


def look(path: Path, token: bytes, like: torch.Tensor) -> Board | None:
    """Open a neighbour's board; None unless it is really the same memory, whatever hostnames and containers say."""
    if not limits.has_spare():
        return None
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(file).st_size != HEADER + 2 * _padded(frame_bytes(like)):
        os.close(file)
        return None
    if os.pread(file, TOKEN, 0) != token:
        os.close(file)
        return None
    return Board(file, like)


def _padded(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _sweep() -> None:
    """Remove boards whose owners died before they could: their lock is free."""
    for path in MEMORY.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # a file between creation and locking is fresh
                if time.time() - os.fstat(file).st_mtime > 60:
                    path.unlink()
            finally:
                os.close(file)
