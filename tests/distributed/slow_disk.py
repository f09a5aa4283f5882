"""A problem whose ranks have a slow disk, may be asked to stop on the way, and may die while they write."""

from __future__ import annotations

import itertools
import os
import signal
import time

import dgt
from tests.distributed.problems import Noisy


class SlowDisk(Noisy):
    """Every fsync of this process takes longer, on node `slow` longer still.

    At iteration `term` all ranks get SIGTERM. Node `dies` is killed in its so-manyth fsync.
    """

    def __init__(
        self,
        context: dgt.ProblemContext,
        fsync: float = 0.05,
        slow: int = 0,
        more: float = 0.0,
        term: int = -1,
        dies: int = -1,
        in_fsync: int = 1,
    ) -> None:
        super().__init__(context, pause=0.0, width=4)
        plainly, seconds, count = os.fsync, fsync + (more if context.node == slow else 0.0), itertools.count(1)

        def slowly(file: int) -> None:
            time.sleep(seconds)
            if context.node == dies and next(count) == in_fsync:
                os.kill(os.getpid(), signal.SIGKILL)
            plainly(file)

        os.fsync = slowly
        self.term = term

    def backward(self, iteration: int) -> float:
        if iteration == self.term == int(self.seen):  # once: a step that is made again was counted before
            os.kill(os.getpid(), signal.SIGTERM)
        return super().backward(iteration)
