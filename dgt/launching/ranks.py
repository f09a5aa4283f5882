"""The ranks that a launcher has started, as it knows them: by the notes they leave in the folder where they meet.

pid-3            process and start time of rank 3
met-4711         the rank with this process number has met all others
listens-4711     it saves and leaves when it is asked to stop
lost-3           by the launcher: rank 3 has ended
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException

from dgt.errors import EXIT_FAILED
from dgt.processes.node import LISTENS, MET
from dgt.processes.process import Process
from dgt.processes.signals import PASSED_ON


def introduce(meeting: Path, rank: int) -> None:
    """This process is that rank; it ends if its launcher has left meanwhile."""
    try:
        Process.own().write(meeting / f"pid-{rank}")
    except FileNotFoundError:
        os._exit(EXIT_FAILED)


class Ranks:
    """The launcher's view of them."""

    def __init__(self, meeting: Path, nodes: int) -> None:
        self._meeting, self._nodes = meeting, nodes
        self._known: dict[int, Process] = {}

    @property
    def known(self) -> dict[int, Process]:
        """Those that have begun, by rank."""
        for rank in range(self._nodes):
            if rank not in self._known:
                with contextlib.suppress(OSError):
                    self._known[rank] = Process.read(self._meeting / f"pid-{rank}")
        return self._known

    def add(self, rank: int, process: Process) -> None:
        """One that was forked just now."""
        self._known[rank] = process

    @property
    def all_begun(self) -> bool:
        return all((self._meeting / f"pid-{rank}").exists() for rank in range(self._nodes))

    def all_say(self, what: str) -> bool:
        """Whether all that are not lost have left this note."""
        return len(self.known) == self._nodes and all(
            (self._meeting / f"{what}-{process.pid}").exists() or (self._meeting / f"lost-{rank}").exists()
            for rank, process in self.known.items()
        )

    @property
    def have_met(self) -> bool:
        return self.all_say(MET)

    def are_stopped(self, ranks: Iterable[int]) -> bool:
        """Whether all of these, which run, were stopped by a signal."""
        return all(self._known[rank].is_stopped() for rank in ranks)

    def lose(self, rank: int) -> None:
        """Tell the others that this one has ended."""
        (self._meeting / f"lost-{rank}").touch()

    def send(self, number: int) -> None:
        """A signal to all that still run, and to nobody else."""
        for process in self.known.values():
            process.send(number)

    @contextlib.contextmanager
    def forwarding(self) -> Iterator[None]:
        """Pass SIGTERM, SIGUSR1 and Ctrl-C on to the ranks, who then stop together; while they start, end at once.

        SIGUSR2, which submitit has Slurm send, is a SIGUSR1 to the ranks. A second Ctrl-C kills them, and so does the
        first where they have nothing to save.
        """
        interrupted = False

        def forward(number: int, frame: object) -> None:
            nonlocal interrupted
            if number == signal.SIGINT and (interrupted or not self.all_say(LISTENS)):
                if interrupted:
                    self.send(signal.SIGKILL)
                raise SignalException("again" if interrupted else "nothing to save", sigval=signal.SIGINT)
            if not self.all_begun:
                raise SignalException("while starting", sigval=signal.Signals(number))
            self.send(signal.SIGUSR1 if number == signal.SIGUSR2 else number)
            if number == signal.SIGINT:
                interrupted = True
                line_break = "\n" if os.isatty(2) else ""  # after the ^C of the terminal
                words = f"{line_break}dgt: interrupted: all ranks save and leave; Ctrl-C again ends them at once\n"
                with contextlib.suppress(OSError):  # not print: it may be printing at this moment
                    os.write(2, words.encode())

        # in the background Ctrl-C is ignored
        heard = [n for n in (*PASSED_ON, signal.SIGINT) if signal.getsignal(n) is not signal.SIG_IGN]
        for number in heard:
            signal.signal(number, forward)
        try:
            yield
        finally:
            for number in heard:
                signal.signal(number, _too_late)


def _too_late(number: int, frame: object) -> None:
    """The ranks have ended: how is what counts."""
