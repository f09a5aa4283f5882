"""File descriptors that a rank's child processes must not inherit: the lock of its run directory, and its sockets.

A `flock` lock and a TCP connection last until the last process that inherited the descriptor closes it. Workers of a
DataLoader check only every five seconds whether their parent has died, so a killed rank would seem to live that long. A
program started with `os.system` may run for hours, and gloo and torch's store do not set close-on-exec.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_own: dict[int, tuple[int, int]] = {}  # descriptor: device and inode of its file


def keep_from_children(descriptor: int) -> None:
    """Replace `descriptor` by /dev/null in all children forked from here on; its owner has set close-on-exec."""
    _own[descriptor] = _identity(descriptor)


@contextlib.contextmanager
def sockets_kept_from_children() -> Iterator[None]:
    """The same, with close-on-exec, for all sockets that are opened inside, by whatever library."""
    before = _sockets()
    yield
    for descriptor, identity in _sockets().items():
        if before.get(descriptor) != identity:
            with contextlib.suppress(OSError):  # closed meanwhile
                os.set_inheritable(descriptor, False)
            _own[descriptor] = identity


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _sockets() -> dict[int, tuple[int, int]]:
    found = {}
    for path in Path("/proc/self/fd").glob("*"):  # without /proc there are none to be found
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith("socket:"):
                found[int(path.name)] = _identity(int(path.name))
    return found


def _replace_in_child() -> None:
    """After a fork, in the child. The descriptor numbers stay in use: objects copied from the parent may close them
    later, and must not close a file that got the same number."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) if _own else -1
    for descriptor, identity in _own.items():
        with contextlib.suppress(
            OSError
        ):  # closed by the parent before the fork; the identity shows if the number was reused
            if _identity(descriptor) == identity:
                os.dup2(nothing, descriptor, inheritable=False)
    if _own:
        os.close(nothing)
        _own.clear()


os.register_at_fork(after_in_child=_replace_in_child)
