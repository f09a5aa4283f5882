"""What the launcher raises when ranks have failed: one `LaunchError` from their failure notes and exit codes."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

from dgt.errors import EXIT_STOPPED, LaunchError
from dgt.launching import forkserver
from dgt.processes import failures, output
from dgt.processes.signals import ENDING
from dgt.training.ending import Stopped

log = logging.getLogger(__name__)


def launch_error(folder: str, codes: dict[int, int]) -> LaunchError:
    """The root cause: a rank's own failure or the stop, else the signal that killed a rank, else the loss of a peer.

    folder   where ranks wrote their failure notes
    codes    exit codes of the ranks that have ended, negative for signals
    """
    notes = failures.notes(Path(folder))
    stopped = [note for note in notes if note.kind == Stopped.__name__]  # all ranks of the network stop together
    cause = failures.root_cause(stopped or notes) if notes else None
    if cause is None or cause.is_peer_loss:
        if how := forkserver.ended_by():
            return LaunchError(f"the process that forks ranks was ended ({how}), and all ranks with it; out of memory?")
        # a rank that notices the loss may be reaped before the rank that was killed: look at all codes
        if killed := {rank: -code for rank, code in codes.items() if code < 0}:
            return _killed(killed)
    if cause is None:
        rank, code = next(iter(codes.items()))
        return LaunchError(f"rank {rank} ended without a word (exit code {code})")
    if cause.traceback:
        log.error("%s", cause.traceback, extra=output.VERBATIM)
    return LaunchError(cause.line, cause.code)


def _killed(signals: dict[int, int]) -> LaunchError:
    """The error for ranks that these signals have killed; SIGTERM and SIGUSR1 may only be how others were ended."""
    rank, number = min(signals.items(), key=lambda pair: pair[1] in ENDING)
    if number == signal.SIGINT:  # Ctrl-C reached the ranks before the launcher
        return LaunchError("interrupted; all ranks stopped", 128 + signal.SIGINT)
    name = signal.Signals(number).name
    if number in ENDING:  # ranks that were still starting, or a run without checkpoints
        return LaunchError(
            f"ended by {name} without saving", EXIT_STOPPED if number == signal.SIGUSR1 else 128 + number
        )
    return LaunchError(f"rank {rank} was killed ({name}); out of memory?")
