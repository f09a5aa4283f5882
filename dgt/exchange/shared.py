"""Shared memory between ranks of one host: a rank publishes a message once, its neighbours read it in place.

A board is one file in memory: a page with a token and a counter, then the message twice, for even and odd steps. The
counter says how many steps have been published; whoever needs a later one sleeps on it (a futex, no busy core).

Two buffers need no acknowledgement, because neighbours on a symmetric graph never drift further apart: i overwrites its
message of step t at step t+2, which it starts only after reading j's step t+1, and j publishes step t+1 only
after it has finished reading i's step t.

The owner holds a lock on its file; the kernel releases it with the process, so a dead neighbour is noticed. Files are
unlinked as soon as the neighbours have opened them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import secrets
import time
import weakref
from pathlib import Path

import numpy as np
import torch

MEMORY = Path("/dev/shm")
PREFIX = "dgt-"
HEADER = 4096
TOKEN = 16
COUNTER = 64  # bytes into the header: a cache line of its own
LOOK_SECONDS = 0.2  # how often a waiting rank looks whether its neighbour still lives
SYS_FUTEX, FUTEX_WAIT, FUTEX_WAKE = 202, 0, 1
EVERYBODY = 2**31 - 1


def available() -> bool:
    """Linux on x86-64: its stores become visible in order, so that a counter written last vouches for the message."""
    return platform.system() == "Linux" and platform.machine() == "x86_64" and os.access(MEMORY, os.W_OK)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32,
)  # fmt: skip
_LOOK = _Timespec(0, int(LOOK_SECONDS * 1e9))
_LOOK_POINTER = ctypes.addressof(_LOOK)


class Board:
    """A mapped file: counter and buffers; made by its owner with `create`, opened by neighbours with `look`."""

    def __init__(self, file: int, like: torch.Tensor) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)
        size = like.numel() * like.element_size()
        self._map = mmap.mmap(file, HEADER + 2 * _padded(size))
        self._counter = np.frombuffer(self._map, dtype=np.uint32, count=1, offset=COUNTER)
        self._address = self._counter.ctypes.data
        self.buffers = [
            torch.frombuffer(
                self._map, dtype=like.dtype, count=like.numel(), offset=HEADER + turn * _padded(size)
            ).view_as(like)
            for turn in (0, 1)
        ]

    def publish(self, step: int) -> None:
        """Say that the buffer of this step is complete, and wake whoever sleeps on it."""
        self._counter[0] = step + 1
        _syscall(SYS_FUTEX, self._address, FUTEX_WAKE, EVERYBODY, None, None, 0)

    def wait(self, step: int, deadline: float) -> str:
        """Sleep until this step is published; returns what went wrong, or nothing."""
        while True:
            seen = int(self._counter[0])
            if seen > step:
                return ""
            _syscall(SYS_FUTEX, self._address, FUTEX_WAIT, seen, _LOOK_POINTER, None, 0)
            if int(self._counter[0]) > step:
                return ""
            if self._owner_is_gone() and int(self._counter[0]) <= step:
                return "is gone (its process ended)"
            if time.monotonic() > deadline:
                return "timed out"

    def _owner_is_gone(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True


class OwnBoard(Board):
    """The owner's side, which knows the file's name until it is unlinked."""

    def __init__(self, file: int, like: torch.Tensor, path: Path) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)  # held as long as the process lives
        super().__init__(file, like)
        self.path, self.token = path, secrets.token_bytes(TOKEN)
        self._map[:TOKEN] = self.token

    def unlink(self) -> None:
        """Nobody else needs to find it any more."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def create(like: torch.Tensor) -> OwnBoard | None:
    """A board for messages like this tensor, or None where there is not enough shared memory."""
    _sweep()
    path = MEMORY / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # all pages now: a full /dev/shm would otherwise end the process with SIGBUS at the first write
            os.posix_fallocate(file, 0, HEADER + 2 * _padded(like.numel() * like.element_size()))
        except OSError:
            path.unlink()
            os.close(file)
            return None
    except OSError:
        return None
    return OwnBoard(file, like, path)


def look(path: Path, token: bytes, like: torch.Tensor) -> Board | None:
    """Open a neighbour's board; None unless it is really the same memory, whatever hostnames and containers say."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(file).st_size != HEADER + 2 * _padded(like.numel() * like.element_size()):
        os.close(file)
        return None
    if os.pread(file, TOKEN, 0) != token:
        os.close(file)
        return None
    return Board(file, like)


def _padded(size: int) -> int:
    return -(-size // HEADER) * HEADER


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
