"""Memory order between processes, for machines that do not keep it by themselves.

A board's message counts once a word written after it says so. x86-64 makes stores visible in the order in which they
were made, and loads in theirs; only a store and a later load need a barrier there. ARM (aarch64) reorders all of them:
the writer needs a barrier between the message and the word, the reader one between the word and the message.

Python has no barrier, and no library that is always there exports one. The kernel does: `futex(FUTEX_WAKE)` executes a
full barrier (smp_mb, on ARM `dmb ish`) between whatever the caller stored before and its look for sleepers. Without it
a sleeper could be missed whose word had just been changed: it is barrier (B) in the comment at the top of
kernel/futex/waitwake.c, and part of what a futex is. A wake-up of nobody, on a word of our own, is therefore a fence
between all loads and stores before it and all after it. It costs a system call, on these machines only.

The argument rests on the kernel's source and on the memory model of ARMv8, whose barriers also cover what other
threads have handed over to the caller. It was not measured on such a machine, and emulators do not reorder.
"""

from __future__ import annotations

import ctypes
import platform

FUTEX_CALL = {"x86_64": 202, "aarch64": 98}  # the number of the system call
ORDERED = ("x86_64",)  # machines that keep the order of stores, and that of loads
NEEDED = platform.machine() not in ORDERED
FUTEX_WAKE_PRIVATE = 1 | 128

_syscall = getattr(ctypes.CDLL(None, use_errno=True), "syscall", None)
_word = ctypes.c_uint32(0)
_CALL = ctypes.c_long(FUTEX_CALL.get(platform.machine(), -1))
_ARGUMENTS = (ctypes.byref(_word), ctypes.c_int(FUTEX_WAKE_PRIVATE), ctypes.c_uint32(1), None, None, ctypes.c_uint32(0))


def is_known() -> bool:
    """Whether this machine's futex, and with it a fence, can be called."""
    return _syscall is not None and platform.system() == "Linux" and platform.machine() in FUTEX_CALL


def fence() -> None:
    """All loads and stores before it happen before all loads and stores after it, as other processes see them."""
    assert _syscall is not None
    if _syscall(_CALL, *_ARGUMENTS) < 0:
        raise OSError(ctypes.get_errno(), "futex")
