"""Limits on open files: how many a run needs, how many are allowed, and the error message if that is too few.

Counted with 2 to 16 ranks on rings and complete graphs: a rank has one socket per other rank, and inherits two pipes
per rank from the forkserver; shared memory takes four descriptors per neighbour and four of its own (two boards, each
open and mapped). The launcher has four per rank. If only shared memory exceeds the limit, messages are used in its
place.
"""

from __future__ import annotations

import contextlib
import os
import resource

ENOUGH = 65_536  # a soft limit that needs no raising
SPARE = 16  # metrics, checkpoints, data sets


def least(ranks: int) -> int:
    """Open files without which so many ranks on one host do not start."""
    return max(4 * ranks + 16, 3 * ranks + 20)


def wanted(ranks: int, degree: int) -> int:
    """Open files with which all neighbours can share memory, `degree` of them per rank."""
    return max(least(ranks), 3 * ranks + 13 + 4 * (1 + degree)) + SPARE


def open_files() -> int:
    """How many files this process may have open at a time."""
    return _known(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _known(limit: int) -> int:
    return ENOUGH if limit == resource.RLIM_INFINITY else limit


def has_spare() -> bool:
    """Whether optional files may be opened: fewer than the limit minus SPARE / 2 are open."""
    try:
        return len(os.listdir("/dev/fd")) + SPARE // 2 < open_files()
    except OSError:  # no descriptor is left to look with
        return False


def raise_open_files() -> None:
    """Raise the soft limit to the hard limit, at most ENOUGH: shells begin with 1024, some with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = min(ENOUGH, _known(hard))
    if _known(soft) < allowed:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower bound of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def too_few(ranks: int) -> str:
    """The error message if so many ranks cannot be started; else empty."""
    if open_files() >= least(ranks):
        return ""
    return f"{ranks} ranks need {least(ranks)} open files, {open_files()} are allowed: ulimit -n {wanted(ranks, ranks)}"
