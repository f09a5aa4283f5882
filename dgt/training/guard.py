"""What stands beside the loop of `trainer.py`: alarms, stopping, checkpoints, the loss of ranks, and the record.

Guard       evaluates and records: a cell of `dgt compare`
RunGuard    a run of `dgt train`, which can be stopped, resumed, and may lose nodes
"""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from dgt.config import Config
from dgt.errors import AlarmError, ConfigError, PeerError
from dgt.network.weights import Weights
from dgt.problems import loaders
from dgt.processes.failures import FOLDER, noted
from dgt.processes.node import Node
from dgt.processes.signals import training_began
from dgt.runs.lock import RunLock
from dgt.runs.logger import RunLogger
from dgt.runs.measures import Metrics, NodeMetrics
from dgt.training.chaos import Chaos
from dgt.training.checkpoints import saving
from dgt.training.checkpoints.finding import last_commit
from dgt.training.checkpoints.returning import settle_members
from dgt.training.checkpoints.saving import Saver
from dgt.training.ending import Ending, Stopped
from dgt.training.evaluation import Evaluation
from dgt.training.finished import evaluated_before, finished_before
from dgt.training.gathering import Gathering
from dgt.training.health import Health
from dgt.training.keeping import Models, average_of
from dgt.training.recording import environment, mixing_matrix_of
from dgt.training.session import Session
from dgt.training.stopping import EarlyStop

Record = Callable[[int, Metrics, NodeMetrics], None]
log = logging.getLogger(__name__)


class Guard:
    """Checks every evaluation, and hands it to `record` on rank 0; nothing is saved, and a lost rank ends the run."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def name_nodes(self, node: Node, weights: Weights) -> None:
        """Before ranks connect: rank i is node i."""

    def run(self, session: Session, loop: Loop) -> Stopped | None:
        """The loop, from the first iteration to the last."""
        self._watch(session)
        loop(session, self, 0)
        session.optimizer.drain()
        return None

    def _watch(self, session: Session) -> None:
        self._session, self._health = session, Health.of_session(session)

    def evaluates(self, iteration: int) -> bool:
        """Whether the network is evaluated before this step: every so many, and at the end."""
        config, problem = self._session.config, self._session.problem
        if iteration in (0, config.iterations):
            return iteration == config.iterations or problem.measures_start
        return iteration % config.eval_every == 0

    def record(self, iteration: int, evaluation: Evaluation | None) -> None:
        """Check what was measured and write it down; on other ranks than 0 there is nothing."""
        if evaluation is not None:
            self._health.check(iteration, evaluation)
            self._record(iteration, evaluation.metrics, evaluation.nodes)

    def before_step(self, iteration: int) -> bool:
        """Whether all ranks stop here, before this step."""
        return False


Loop = Callable[[Session, Guard, int], int | None]


class RunGuard(Guard):
    """One start of a run, with everything that its run directory holds.

    start    names it in the run directory
    command  what the user typed
    show     how the result is printed at the end: text, json or nothing
    lock     keeps other runs out of the directory
    since    when this start of the run began, if that is not now
    """

    def __init__(
        self, config: Config, start: str, command: str, show: str, lock: RunLock, since: float | None = None
    ) -> None:
        self._config, self._start, self._command, self._show, self._lock = config, start, command, show, lock
        self._since = since
        self._saver: Saver | None = None
        self._noting = contextlib.ExitStack()

    def __enter__(self) -> RunGuard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._noting.__exit__(kind, error, traceback)

    def name_nodes(self, node: Node, weights: Weights) -> None:
        """As many nodes as there are ranks, or those that the last checkpoint of a run with losses has."""
        config = self._config
        if config.on_peer_loss != "stop" and node.backend == "nccl":
            raise ConfigError(f"on_peer_loss={config.on_peer_loss}: nccl cannot go on without a rank; use backend=gloo")
        settle_members(node, int(weights.size), lambda: last_commit(config), config.resume, log.info)
        # an error from here on is a failure of the run, told by its directory; before, it is bad input
        self._noting.enter_context(noted(Path(str(config.run_dir)) / FOLDER / self._start, node.world.name))

    def run(self, session: Session, loop: Loop) -> Stopped | None:
        """Resume if asked to, then the loop, again after each loss of ranks; all ranks end it together: `ending.py`."""
        config, node = self._config, session.node
        first, history = saving.resume(session, log.info)
        finished = finished_before(config, node, first)
        if finished is not None:
            if node.is_main:
                finished.show(self._show)
            return None
        self._first, self._evaluated = first, evaluated_before(config, node, first, history)
        self._early = EarlyStop(config)
        self._early.go_on(node, first, self._evaluated, history)
        speaks = node.is_main and not node.is_new
        self._logger = RunLogger(
            config, node.size, speaks, self._start, self._command, lock=self._lock, since=self._since
        )
        self._record = self._logger.record
        self._logger.start(first, history)
        self._logger.environment(environment(node, config))
        if session.returned:
            self._logger.membership(first, session.returned, node.members, session.weights)
        self._roll = {} if node.is_new else session.roll()
        self._gathering = Gathering(session)
        self._chaos = Chaos(config, node)
        self._models = Models(config, log.info)
        if node.is_main:
            self._models.start(first, history)
        again = self._command_to_go_on(node)
        self._ending = Ending(session, self._logger, self._models, self._show, self._chaos.phase, again)
        self._listen(session)
        return self._run_until_the_end(session, loop)

    def _command_to_go_on(self, node: Node) -> str:
        """What the user types to go on; under torchrun or srun it begins with theirs, which is not known."""
        words = [word for word in shlex.split(self._command) if not word.startswith(("run_dir=", "resume=", "chaos"))]
        if node.launcher_notes is None or not words:
            return ""
        return shlex.join([*words, f"run_dir={self._config.run_dir}", "resume=auto"])

    def _listen(self, session: Session) -> None:
        """From here on a signal makes all ranks save and stop at the same step, if there are checkpoints."""
        if self._config.checkpoint.keep_last:
            warning = loaders.warning(session.problem)
            if warning:
                log.info(warning)
            session.node.stop_on_signals()
        if self._config.on_peer_loss != "stop":
            session.node.leave_on_signal()
        training_began()

    def _run_until_the_end(self, session: Session, loop: Loop) -> Stopped | None:
        changes = session.node.is_new
        while True:
            try:
                if changes and not self._regroup(session):
                    return None
                end = self._run_once(session, loop)
                if not self._gathering.meets:
                    return end
            except AlarmError as alarm:
                session.node.raise_alarm(str(alarm))
                raise
            except PeerError as error:
                if self._ending.was_decided_before(error):
                    return self._ending.outcome()
                if self._config.on_peer_loss == "stop":
                    raise
            # outside of `except` nothing refers to the error, whose frames would keep the old connections open
            changes = True

    def _run_once(self, session: Session, loop: Loop) -> Stopped | None:
        """With the nodes that are there: the loop, and the end that all ranks come to together."""
        node, ending = session.node, self._ending
        self._watch(session)
        if self._config.checkpoint.keep_last:
            self._saver = Saver.of_session(session, log.info, self._chaos.phase, self._logger.check, self._saver)
        self._logger.network(
            self._first, session.weights, mixing_matrix_of(session.network), node.members, session.graph
        )
        ending.stopped_at = loop(session, self, self._first)
        if self._gathering.meets:
            session.optimizer.drain()
            return None
        ending.early = self._early.reason
        ending.has_begun = True
        self._chaos.phase("drain")
        session.optimizer.drain()
        ending.average()
        self._chaos.phase("barrier")
        # a rank that is lost before it is lost for all others too; after it none of them trains on
        node.world.barrier()
        return ending.conclude(self._saver)

    def _regroup(self, session: Session) -> bool:
        """Go on with the ranks that are left, and those who come back, from one iteration that they agree on; False on
        a node that has left."""
        self._logger.pause()
        words = session.regroup(self._roll, self._gathering.leaving)
        if not words:
            session.node.parted = True
            return False
        node = session.node
        self._first, self._evaluated, self._ending.has_begun = session.optimizer.iteration, False, False
        self._logger.go_on(self._first, words, node.members, session.weights, speaks=node.is_main)
        self._roll = session.roll()
        self._gathering.over()
        if node.is_main:  # a new one takes over
            self._models.start(self._first)
        self._early.share(node)
        return True

    def evaluates(self, iteration: int) -> bool:
        """Not again where the run was saved after that evaluation."""
        return super().evaluates(iteration) and not (self._evaluated and iteration == self._first)

    def record(self, iteration: int, evaluation: Evaluation | None) -> None:
        """As before; what was saved since the last sound evaluation is not resumed from after an alarm."""
        try:
            super().record(iteration, evaluation)
        except AlarmError:
            if self._saver is not None:
                self._saver.disown(after=self._health.sound_until)
            raise
        self._models.consider(iteration, evaluation, self._session)
        self._early.look(self._session.node, iteration, None if evaluation is None else evaluation.metrics)

    def before_step(self, iteration: int) -> bool:
        """Save if it is time to, and rehearse a fault if one is asked for."""
        session, saver, last = self._session, self._saver, self._config.iterations
        if self._early.reason:
            return True
        if saver is not None and session.optimizer.stop_now:
            return True
        if self._config.on_peer_loss != "stop" and iteration < last:
            self._gathering.ask()
            if self._gathering.is_now(iteration):
                return True
        if saver is not None:
            if saver.is_due(iteration) and self._first < iteration < last:  # the last one is written at the end
                saver.save(iteration, average_of(session, iteration))
            saver.ask_if_late()
        if iteration < last:
            self._chaos.strike(iteration, session)
        return False
