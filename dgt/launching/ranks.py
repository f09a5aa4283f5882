"""The launcher's view of its ranks, through files in their temporary folder.

pid-3             by rank 3: its pid and start time
connected-4711    by the rank with this pid: it has connected to all others
stops-4711        by the rank with this pid: it saves and exits when a signal asks it to
lost-3.0          by the launcher: rank 3 has ended; lost-3.1: and so has the first process in its place
returns-3         by the launcher, before that: rank 3 is started again
start-3           by rank 0: rank 3, which has left or is lost, is to be started again
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException

from dgt.errors import EXIT_FAILED
from dgt.processes.node import CONNECTED, STOPS_ON_SIGNALS, lost_note, returns_note, start_note
from dgt.processes.process import Process
from dgt.processes.signals import PASSED_ON


def register_rank(folder: Path, rank: int) -> None:
    """Write that this process is that rank; exit if the folder is gone, with the launcher that made it."""
    try:
        Process.own().write(folder / f"pid-{rank}")
    except FileNotFoundError:
        os._exit(EXIT_FAILED)


class Ranks:
    """The ranks 0, ..., nodes - 1 that use this folder."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder, self._nodes = folder, nodes
        self._processes: dict[int, Process] = {}
        self._connected = False
        self._lost: set[int] = set()
        self._waiting: set[int] = set()  # in place of lost ones; the others do not know them yet
        self.asked_to_stop = False

    @property
    def processes(self) -> dict[int, Process]:
        """The processes of ranks that have registered, by rank."""
        for rank in range(self._nodes):
            if rank not in self._processes:
                with contextlib.suppress(OSError):
                    self._processes[rank] = Process.read(self._folder / f"pid-{rank}")
        return self._processes

    def add(self, rank: int, process: Process, waits: bool = False) -> None:
        """A rank that was forked just now, before it registers itself; one that `waits` takes the place of another."""
        self._processes[rank] = process
        self._lost.discard(rank)
        if waits:
            self._waiting.add(rank)

    @property
    def all_registered(self) -> bool:
        return all((self._folder / f"pid-{rank}").exists() for rank in range(self._nodes))

    def all_wrote(self, what: str) -> bool:
        """Whether all ranks have written the file WHAT-PID, but for those that are lost or wait in their place."""
        return len(self.processes) == self._nodes and all(
            rank in self._lost or (rank in self._waiting and not self.has_connected(rank)) or self._wrote(what, rank)
            for rank in self.processes
        )

    def _wrote(self, what: str, rank: int) -> bool:
        return (self._folder / f"{what}-{self._processes[rank].pid}").exists()

    def has_connected(self, rank: int) -> bool:
        """Whether the present process of this rank has connected to the others."""
        return self._wrote(CONNECTED, rank)

    @property
    def have_connected(self) -> bool:
        """Whether all ranks have, once."""
        self._connected = self._connected or self.all_wrote(CONNECTED)
        return self._connected

    def are_stopped(self, ranks: Iterable[int]) -> bool:
        """Whether all of these running ranks are stopped (SIGSTOP)."""
        return all(self._processes[rank].is_stopped() for rank in ranks)

    def mark_lost(self, rank: int, attempt: int = 0, returns: bool = False) -> None:
        """Write for the others that this rank, started again so often, has ended, and whether it is started again."""
        self._lost.add(rank)
        note = self._folder / returns_note(rank)
        note.touch() if returns else note.unlink(missing_ok=True)
        (self._folder / lost_note(rank, attempt)).touch()

    def to_start(self) -> list[int]:
        """The ranks that are to be started again on request; each request is returned once."""
        found = [rank for rank in range(self._nodes) if (self._folder / start_note(rank)).exists()]
        for rank in found:
            (self._folder / start_note(rank)).unlink(missing_ok=True)
        return found

    def send(self, number: int) -> None:
        """Send a signal to all ranks that still run; never to another process that got the pid of one."""
        for process in self.processes.values():
            process.send(number)

    @contextlib.contextmanager
    def forwarding(self) -> Iterator[None]:
        """Forward SIGTERM, SIGUSR1 and Ctrl-C to the ranks, which then stop at the same step; while ranks are still
        starting, raise `SignalException`, after which the launcher kills them.

        SIGUSR2, which submitit has Slurm send, is forwarded as SIGUSR1. A second Ctrl-C kills the ranks, and so does
        the first if they do not handle signals, as with nothing to save.
        """
        interrupted = False

        def forward(number: int, frame: object) -> None:
            nonlocal interrupted
            self.asked_to_stop = True
            if number == signal.SIGINT and (interrupted or not self.all_wrote(STOPS_ON_SIGNALS)):
                if interrupted:
                    self.send(signal.SIGKILL)
                raise SignalException("again" if interrupted else "nothing to save", sigval=signal.SIGINT)
            if not self.all_registered:
                raise SignalException("while starting", sigval=signal.Signals(number))
            self.send(signal.SIGUSR1 if number == signal.SIGUSR2 else number)
            if number == signal.SIGINT:
                interrupted = True
                line_break = "\n" if os.isatty(2) else ""  # after the ^C of the terminal
                words = f"{line_break}dgt: interrupted: all ranks save and leave; Ctrl-C again ends them at once\n"
                with contextlib.suppress(OSError):  # not logging: this handler may interrupt a print
                    os.write(2, words.encode())

        # SIGINT is ignored in a background job, and stays so
        forwarded = [n for n in (*PASSED_ON, signal.SIGINT) if signal.getsignal(n) is not signal.SIG_IGN]
        for number in forwarded:
            signal.signal(number, forward)
        try:
            yield
        finally:
            for number in forwarded:
                signal.signal(number, _ignore)


def _ignore(number: int, frame: object) -> None:
    """Signals that arrive after the ranks have ended do not change the exit code."""
