"""A separate process that kills a torchrun which does not exit although all of its ranks have ended.

python -m dgt.launching.watchdog PIDFD SECONDS PID        # PIDFD is an inherited pidfd of torchrun, PID its pid
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import sys
from pathlib import Path

from dgt.processes import output

log = logging.getLogger("dgt")


def main(torchrun: int, seconds: float, pid: str) -> None:
    """Every `seconds` check whether torchrun has ranks, first or restarted ones; if it has none, kill it."""
    while not select.select([torchrun], [], [], seconds)[0]:
        if not _has_children(pid):
            log.warning("torchrun on this host cannot reach the others: ended")
            signal.pidfd_send_signal(torchrun, signal.SIGKILL)
            return


def _has_children(pid: str) -> bool:
    """Whether the process with this pid has children that are not zombies."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if parent == pid and state != "Z":
                return True
    return False


if __name__ == "__main__":
    output.log_to_stderr(is_main=True)
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
