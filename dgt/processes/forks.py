"""What a rank's children must not keep open: the lock that says that the rank lives, and its connections.

A lock by `flock` and a TCP connection last until the last process that inherited them has closed them. The workers of
a DataLoader look for their parent every five seconds only: for so long a killed rank would seem to live. A program that
it started (`os.system`) may run for hours, and gloo and torch's store leave their sockets open to it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_own: dict[int, tuple[int, int]] = {}  # descriptor: device and inode of what it stood for


def keep_from_children(descriptor: int) -> None:
    """Children that are forked from here on have it closed; those that execute another program never have it."""
    _own[descriptor] = _identity(descriptor)


@contextlib.contextmanager
def sockets_kept_from_children() -> Iterator[None]:
    """The same for all sockets that are opened inside, by whatever library."""
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
    for path in Path("/proc/self/fd").glob("*"):  # elsewhere than on Linux there is none, and nothing is found
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith("socket:"):
                found[int(path.name)] = _identity(int(path.name))
    return found


def _let_go() -> None:
    """In the child. The numbers stay taken: whoever closes them later must not close something else."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) if _own else -1
    for descriptor, identity in _own.items():
        with contextlib.suppress(OSError):  # closed meanwhile, and perhaps something else by now
            if _identity(descriptor) == identity:
                os.dup2(nothing, descriptor, inheritable=False)
    if _own:
        os.close(nothing)
        _own.clear()


os.register_at_fork(after_in_child=_let_go)
