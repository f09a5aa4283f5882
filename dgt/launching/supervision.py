"""Supervising ranks of this host of which some may be lost: torch's launcher would kill the others.

A rank that ends with an error is marked as lost, in a file that the others read, and is started again if it is to be
replaced; the new process waits until the others take it in. Before all ranks have connected, the first failure ends the
run. The run is over when no rank is left that the others know.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from dgt.errors import EXIT_BAD_INPUT, TrainingError, WireError
from dgt.launching.jobs import JoinOptions
from dgt.launching.outcome import launch_error
from dgt.launching.rank import loss_tolerant_rank
from dgt.launching.ranks import Ranks
from dgt.processes import failures
from dgt.processes.process import Process
from dgt.training.ending import Stopped

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0  # how often the launcher checks ranks that still run
LONGEST_PAUSE = 300.0  # seconds before a rank is started again


@dataclass(slots=True)
class Supervision:
    """The ranks 0, ..., nodes - 1.

    arguments   of every rank: the job, how to join, the temporary folder, the launcher
    """

    ranks: Ranks
    nodes: int
    options: JoinOptions
    folder: str
    arguments: tuple[Any, ...]
    _processes: dict[int, BaseProcess] = field(default_factory=dict)
    _attempts: dict[int, int] = field(default_factory=dict)
    _codes: dict[int, int] = field(default_factory=dict)
    """By rank, of the last process of each that the others knew, once it has ended."""
    _due: dict[int, float] = field(default_factory=dict)
    """When to start a rank again."""
    _active: float = field(default_factory=time.monotonic)

    def run(self) -> dict[int, Any]:
        """Until all ranks have ended; `LaunchError` if none of them did so without an error."""
        for rank in range(self.nodes):
            self._start(rank, 0)
        while any(self._is_member(rank) for rank in self._processes):
            self._start_those_due()
            self._kill_if_all_stopped()
            self._wait()
        for rank in list(self._processes):  # nobody is left who could take them in
            self._processes.pop(rank).kill()
        # nodes that have left on purpose ended with 0, whatever the others did then
        if all(self._codes.values()) or any(
            note.kind == Stopped.__name__ for note in failures.notes(Path(self.folder))
        ):
            raise launch_error(self.folder, self._codes)
        return dict.fromkeys(range(self.nodes))

    def _start(self, rank: int, attempt: int) -> None:
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=loss_tolerant_rank, args=(rank, self.nodes, attempt, *self.arguments))
        process.start()
        assert process.pid is not None
        self._processes[rank], self._attempts[rank] = process, attempt
        self.ranks.add(rank, Process.of(process.pid), waits=attempt > 0)

    def _is_member(self, rank: int) -> bool:
        """Whether the others know this process."""
        return not self._attempts[rank] or self.ranks.has_connected(rank)

    def _start_those_due(self) -> None:
        for rank in self.ranks.to_start():
            if rank not in self._processes:
                self._due[rank] = time.monotonic()
        for rank, when in list(self._due.items()):
            if time.monotonic() >= when:
                del self._due[rank]
                self._start(rank, self._attempts[rank] + 1)

    def _wait(self) -> None:
        """For the end of any rank, or until something is to be done."""
        sentinels = {process.sentinel: rank for rank, process in self._processes.items()}
        until_due = [when - time.monotonic() for when in self._due.values()]
        patience = max(0.0, min([POLL_SECONDS, *until_due]))
        for sentinel in multiprocessing.connection.wait(list(sentinels), patience):
            self._has_ended(sentinels[cast(int, sentinel)])

    def _has_ended(self, rank: int) -> None:
        was_member, process = self._is_member(rank), self._processes.pop(rank)
        process.join()
        code = process.exitcode or 0
        if was_member:
            self._codes[rank] = code
        if not code:
            return
        if not self.ranks.have_connected:  # the others would wait minutes for it in the rendezvous
            raise launch_error(self.folder, self._codes)
        returns = self._is_replaced(code, rank)
        self.ranks.mark_lost(rank, self._attempts[rank], returns)
        if was_member or not self.ranks.asked_to_stop:
            _log_loss(self.folder, rank, code)
        if returns:
            pause = min(LONGEST_PAUSE, self.options.replace_pause * 2 ** self._attempts[rank])
            self._due[rank] = time.monotonic() + pause

    def _is_replaced(self, code: int, rank: int) -> bool:
        """Not where the next one would end as this one did, or all are to stop."""
        goes_on = not self.ranks.asked_to_stop and code != EXIT_BAD_INPUT
        if goes_on and 0 < self.options.replace_most <= self._attempts[rank]:
            log.warning("rank %d is not started again: replace.most=%d", rank, self.options.replace_most)
        return goes_on and self._attempts[rank] < self.options.replace_most

    def _kill_if_all_stopped(self) -> None:
        """Ranks that were stopped by SIGSTOP while the others went on without them, and finished, would stay."""
        running = list(self._processes)
        if max(self._codes.values(), default=-1) < 0 or not self.ranks.are_stopped(running):
            self._active = time.monotonic()
        elif time.monotonic() > self._active + self.options.timeout:
            names = ", ".join(map(str, running))
            log.warning("the others have ended, and rank %s is stopped (SIGSTOP): killed", names)
            self.ranks.send(signal.SIGKILL)


def _log_loss(folder: str, rank: int, code: int) -> None:
    """Why a rank is lost, unless it failed only because it lost others."""
    if code < 0:
        log.warning("rank %d was killed (%s)", rank, signal.Signals(-code).name)
    for note in failures.notes(Path(folder)):
        if note.rank == rank and note.kind in (TrainingError.__name__, WireError.__name__):
            log.warning("rank %d left: %s", rank, note.reason)
