"""The end of a run, the same on all ranks: finished, early or not, or stopped, saved or not, whoever is lost meanwhile.

All ranks have made their last step. They save, and wait for one answer: it is given once the checkpoint is committed
(or could not be written) and the summary is on the disk, by the lowest rank that is still there. From then on nobody is
needed, and a rank that is lost changes neither what was saved nor the exit code. A rank that is lost before its part
of the checkpoint was written is a loss like any other.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from dgt.errors import EXIT_STOPPED, PeerError, StoreError
from dgt.processes.regroup import BROKEN, Question
from dgt.runs.layout import MODEL
from dgt.runs.logger import RunLogger
from dgt.training.checkpoints.models import ModelState
from dgt.training.checkpoints.saving import SAVED, UNSAVED, Saver
from dgt.training.keeping import Models, average_of
from dgt.training.session import Session

HEARD = "as another rank was asked to"


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run was asked to stop, and did so at the same iteration on all ranks."""

    iteration: int
    signal: int
    """Which this rank got; 0 if it heard of the stop from others."""
    saved: bool
    run_dir: str
    left: int
    """Nodes that are left, of `nodes`."""
    nodes: int
    again: str = ""
    """The command that goes on from there, where it is known."""

    @property
    def code(self) -> int:
        """The process's exit code: after Ctrl-C that of shells."""
        return 128 + self.signal if self.signal == signal.SIGINT else EXIT_STOPPED

    def __str__(self) -> str:
        rest = f"resume=auto run_dir={self.run_dir} continues" if self.saved else "no checkpoint could be written"
        if self.saved and self.left < self.nodes:
            rest += f" with all {self.nodes} nodes, or on {self.left} ranks with the {self.left} that are left"
        elif self.saved and self.signal == signal.SIGINT and self.again:
            rest = f"to go on: {self.again}"
        if self.signal == signal.SIGINT:
            return f"interrupted at iteration {self.iteration}; {rest}"
        if not self.signal:
            return f"stopped at iteration {self.iteration}, {HEARD}; {rest}"
        return f"stopped by {signal.Signals(self.signal).name} at iteration {self.iteration}; {rest}"


class Ending:
    """The end of a run as one rank sees it; `stopped_at` is where it was asked to stop, if it was."""

    def __init__(
        self,
        session: Session,
        logger: RunLogger,
        models: Models,
        show: str,
        phase: Callable[[str], None],
        again: str = "",
    ) -> None:
        self._session, self._logger, self._models = session, logger, models
        self._show, self._phase, self._again = show, phase, again
        self._saver: Saver | None = None
        self._model: ModelState | None = None
        self.stopped_at: int | None = None
        self.early = ""  # why it has finished there, if nobody asked for it
        self.has_begun = False  # this rank has made its last step
        self._answer = ""

    @property
    def _iteration(self) -> int:
        return self._session.config.iterations if self.stopped_at is None else self.stopped_at

    def average(self) -> None:
        """Put the model together with which the run ends; all ranks call it, before `conclude`."""
        self._model = average_of(self._session, self._iteration)

    def conclude(self, saver: Saver | None) -> Stopped | None:
        """Save, write model and summary, leave the store. All ranks have made their last step and call it together."""
        question, self._saver = self._session.node.ask("end"), saver
        if saver is None:
            answer = self._write_model(question) or question.answer_by_lowest(lambda: self._write_down(UNSAVED))
            if answer.startswith(BROKEN):
                raise PeerError(f"node {question.own}: {answer.removeprefix(BROKEN)}")
        else:
            try:
                answer = saver.conclude(question, self._iteration, self._write_down, self._model, self._write_model)
            except StoreError:
                # rank 0 and its store are gone; it commits before it exits, so all ranks find COMMIT, or none does
                if not saver.writer.outcome(self._iteration):
                    raise
                answer = SAVED if question.own != question.members[1] else self._write_down(SAVED)
        self._phase("leave")
        question.acknowledge()
        return self._over(answer)

    def was_decided_before(self, error: PeerError) -> bool:
        """Whether all ranks had the answer when one was lost; if not, the question is closed as broken.

        There is no answer before all ranks have made their last step. Until then the store is not asked: it may be on
        the other side of a broken link, and answer after minutes.
        """
        if not self.has_begun:
            return False
        reason = str(error).partition(": ")[2]
        try:
            self._answer = self._session.node.ask("end").propose(f"{BROKEN}{reason}")
        except StoreError:
            return False
        return not self._answer.startswith(BROKEN)

    def outcome(self) -> Stopped | None:
        """What the others decided."""
        return self._over(self._answer)

    def _write_model(self, question: Question) -> str:
        """Rank 0 writes it in the background, and shows meanwhile that it lives; returns the answer if there is one."""
        if self._model is not None:
            self._logger.check()
            self._models.finish_with(self._model)
        return question.wait(lambda: not self._models.busy, lambda member: False)

    def _write_down(self, answer: str) -> str:
        self._phase("summary")
        self._logger.take_over(self._iteration)
        if self._model is None and self._saver is not None and answer == SAVED:  # rank 0 is lost
            self._models.copy_last(self._saver.writer.path_of(self._iteration) / MODEL)
        stopped = self._stopped(answer)
        if stopped is None:
            self._logger.finish(self._show, self.early, self._models.summary())
        else:
            self._logger.stopped(stopped.iteration, str(stopped))
        return answer

    def _over(self, answer: str) -> Stopped | None:
        self._session.node.parted = True
        return self._stopped(answer)

    def _stopped(self, answer: str) -> Stopped | None:
        if self.stopped_at is None or self.early:
            return None
        config, node = self._session.config, self._session.node
        nodes = int(self._session.whole[1].size)
        saved = answer == SAVED
        return Stopped(
            self.stopped_at, node.notices.stop_asked, saved, str(config.run_dir), node.size, nodes, self._again
        )
