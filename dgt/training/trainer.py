"""One training run as one rank sees it. Read this file to see the whole system."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from dgt.checks import AlarmError, ConfigError
from dgt.config import Config
from dgt.network.weights import Weights
from dgt.node import Node
from dgt.notices import PeerError
from dgt.problems import Problem
from dgt.training import saving
from dgt.training.chaos import Chaos
from dgt.training.health import Health
from dgt.training.logger import RunLogger
from dgt.training.metrics import Metrics, NodeMetrics, evaluate
from dgt.training.recording import environment, mixing_matrix_of
from dgt.training.saving import Saver
from dgt.training.session import Session

Record = Callable[[int, Metrics, NodeMetrics], None]
HEARD = "as another rank was asked to"


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run was asked to stop, and did so at the same iteration on all ranks."""

    iteration: int
    signal: int
    """Which this rank got; 0 if it heard of the stop from others."""
    saved: bool
    run_dir: str

    def __str__(self) -> str:
        rest = f"resume=auto run_dir={self.run_dir} continues" if self.saved else "no checkpoint could be written"
        if not self.signal:
            return f"stopped at iteration {self.iteration}, {HEARD}; {rest}"
        return f"stopped by {signal.Signals(self.signal).name} at iteration {self.iteration}; {rest}"


def train(
    config: Config,
    node: Node,
    weights: Weights,
    graph: nx.Graph,
    record: Record,
    seeds: Sequence[int] | None = None,
) -> None:
    """Train this node; rank 0 calls `record` with the network's and the nodes' metrics at each evaluation.

    Several seeds are trained side by side in one model: the same graph and messages, independent numbers.
    """
    session = Session(config, node, weights, graph, [config.seed] if seeds is None else list(seeds))
    run(session, record, Health.of_session(session), first=0)
    session.optimizer.drain()


def run(
    session: Session,
    record: Record,
    health: Health,
    first: int,
    evaluated: bool = False,
    saver: Saver | None = None,
    chaos: Chaos | None = None,
) -> int | None:
    """From iteration `first`, evaluated already or not, to the last.

    Returns the iteration at which all ranks were asked to stop, if they were.
    """
    config, optimizer, clock = session.config, session.optimizer, session.clock
    for iteration in range(first, config.iterations + 1):
        if _is_due(iteration, config, session.problem) and not (evaluated and iteration == first):
            clock.evaluating()
            evaluated_now = evaluate(session.problem, optimizer, session.losses.take())
            clock.resume()
            if evaluated_now is not None:
                metrics, nodes = evaluated_now
                times = {"seconds": clock.training, "evaluation_share": clock.evaluation_share}
                metrics |= {name: np.full(session.problem.copies, value) for name, value in times.items()}
                try:
                    health.look(iteration, metrics)
                except AlarmError:
                    if saver is not None:
                        saver.disown(after=health.sound_until)
                    raise
                record(iteration, metrics, nodes)
        if saver is not None:
            if optimizer.stop_now:
                return iteration
            if saver.is_due(iteration) and first < iteration < config.iterations:  # the last one is not only copied
                saver.save(iteration)
            saver.ask_if_late()
        if iteration < config.iterations:
            if chaos is not None:
                chaos.strike(iteration, session)
            session.step(iteration)
    return None


def _is_due(iteration: int, config: Config, problem: Problem) -> bool:
    if iteration in (0, config.iterations):
        return iteration == config.iterations or problem.measures_start
    return iteration % config.eval_every == 0


def train_safely(config: Config, node: Node, weights: Weights, graph: nx.Graph, logger: RunLogger) -> Stopped | None:
    """As `train`, with checkpoints in `config.run_dir`: resume if asked to, save when due, stop when asked to."""

    def say(words: str) -> None:
        print(f"dgt: {words}", file=sys.stderr, flush=True)

    if config.on_peer_loss == "continue" and node.backend == "nccl":
        raise ConfigError("on_peer_loss=continue: nccl cannot go on without a rank; use backend=gloo")
    session = Session(config, node, weights, graph, [config.seed])
    first, history = saving.resume(session, say if node.is_main else _silently)
    logger.start(first, history)
    logger.environment(environment(node, config))
    chaos, saver = Chaos(config, node), None
    if config.checkpoint.keep_last:
        saver = Saver.of_session(session, say, chaos.phase)
        node.stop_on_signals()
    evaluated = first > 0
    while True:
        try:
            logger.network(first, session.weights, mixing_matrix_of(session.network), node.members)
            stopped_at = run(session, logger.record, Health.of_session(session), first, evaluated, saver, chaos)
            session.optimizer.drain()
            node.barrier()  # nobody goes on without the others from here
            if saver is None:
                return None
            saved = saver.save_now(config.iterations if stopped_at is None else stopped_at)
            if stopped_at is None:
                return None
            return Stopped(stopped_at, node.notices.stop_asked, saved, str(config.run_dir))
        except AlarmError as alarm:
            node.raise_alarm(str(alarm))
            raise
        except PeerError:
            if config.on_peer_loss == "stop":
                raise
        # out here nothing refers to the error any more: what it holds on to would keep the old connections open
        words = session.go_on_without_the_lost()
        first, evaluated = session.optimizer.iteration, False
        logger.go_on(first, words, node.members, speaks=node.is_main)
        saver = Saver.of_session(session, say, chaos.phase) if saver is not None else None


def _silently(words: str) -> None:
    """Rank 0 has said it."""
