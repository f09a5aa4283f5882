"""How many files the processes of a run hold open, what this process may open, and the sentence where that is too few.

Counted with 2 to 16 ranks on rings and complete graphs: a rank has a connection to every other one and two pipes of
each from the process that forked them all; shared memory takes four more per neighbour, and four of its own (two
boards, each open and mapped). The launcher has four per rank. Where only shared memory does not fit, messages are used.
"""

from __future__ import annotations

import contextlib
import os
import resource

ENOUGH = 65_536  # a soft limit that needs no raising
SPARE = 16  # metrics, checkpoints, data sets


def least(ranks: int) -> int:
    """Without so many, ranks on one host do not start."""
    return max(4 * ranks + 16, 3 * ranks + 20)


def wanted(ranks: int, degree: int) -> int:
    """With so many, all neighbours share memory."""
    return max(least(ranks), 3 * ranks + 13 + 4 * (1 + degree)) + SPARE


def open_files() -> int:
    """How many files this process may have open at a time."""
    return _known(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _known(limit: int) -> int:
    return ENOUGH if limit == resource.RLIM_INFINITY else limit


def has_spare() -> bool:
    """Whether files can be opened that are not needed, and some are left for those that are."""
    try:
        return len(os.listdir("/dev/fd")) + SPARE // 2 < open_files()
    except OSError:  # no descriptor is left to look with
        return False


def raise_open_files() -> None:
    """As far as the system allows without asking: shells begin with 1024, some with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = min(ENOUGH, _known(hard))
    if _known(soft) < allowed:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower bound of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def too_few(ranks: int) -> str:
    """What is wrong, in words, where so many ranks cannot be started; else nothing."""
    if open_files() >= least(ranks):
        return ""
    return f"{ranks} ranks need {least(ranks)} open files, {open_files()} are allowed: ulimit -n {wanted(ranks, ranks)}"
