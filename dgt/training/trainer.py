"""One training run as one rank sees it. Read this file to see the whole system."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import networkx as nx
import numpy as np

from dgt.config import Config
from dgt.errors import AlarmError, ConfigError, PeerError
from dgt.network.weights import Weights
from dgt.problems import Problem, loaders
from dgt.processes.node import Node
from dgt.processes.signals import training_began
from dgt.runs.logger import RunLogger
from dgt.runs.measures import Metrics, NodeMetrics
from dgt.training.chaos import Chaos
from dgt.training.checkpoints import saving
from dgt.training.checkpoints.saving import Saver
from dgt.training.ending import Ending, Stopped
from dgt.training.evaluation import evaluate
from dgt.training.finished import evaluated_before, finished_before
from dgt.training.health import Health
from dgt.training.recording import environment, mixing_matrix_of
from dgt.training.session import Session

Record = Callable[[int, Metrics, NodeMetrics], None]


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
            evaluated_now = evaluate(session.problem, optimizer, session.losses.mean())
            session.losses.clear()
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


def train_safely(
    config: Config,
    node: Node,
    weights: Weights,
    graph: nx.Graph,
    logger: RunLogger,
    show: str = "nothing",
    again: str = "",
) -> Stopped | None:
    """As `train`, with checkpoints in `config.run_dir`: resume if asked to, save when due, stop when asked to.

    How it ends is decided by all ranks together, and written down first: `ending.py`.
    """
    if config.on_peer_loss == "continue" and node.backend == "nccl":
        raise ConfigError("on_peer_loss=continue: nccl cannot go on without a rank; use backend=gloo")
    session = Session(config, node, weights, graph, [config.seed])
    first, history = saving.resume(session, _say if node.is_main else _discard)
    ended = finished_before(config, node, first)
    if ended is not None:
        if node.is_main:
            ended.show(show)
        return None
    evaluated, lost = evaluated_before(config, node, first, history), False
    logger.start(first, history)
    logger.environment(environment(node, config))
    if session.returned:
        logger.membership(first, session.returned, node.members)
    chaos = Chaos(config, node)
    ending = Ending(session, logger, show, chaos.phase, again)
    saver: Saver | None = None
    if config.checkpoint.keep_last:
        if node.is_main and (words := loaders.warning(session.problem)):
            _say(words)
        node.stop_on_signals()
    training_began()
    while True:
        try:
            if lost:
                words = session.regroup()
                first, evaluated, lost, ending.begun = session.optimizer.iteration, False, False, False
                logger.go_on(first, words, node.members, speaks=node.is_main)
            if config.checkpoint.keep_last:
                saver = Saver.of_session(session, _say, chaos.phase, logger.check, before=saver)
            logger.network(first, session.weights, mixing_matrix_of(session.network), node.members)
            ending.stopped_at = run(session, logger.record, Health.of_session(session), first, evaluated, saver, chaos)
            ending.begun = True
            chaos.phase("drain")
            session.optimizer.drain()
            chaos.phase("barrier")
            node.barrier()  # nobody goes on without the others from here
            return ending.reach(saver)
        except AlarmError as alarm:
            node.raise_alarm(str(alarm))
            raise
        except PeerError as error:
            if ending.came_before(error):
                return ending.follow()
            if config.on_peer_loss == "stop":
                raise
        # out here nothing refers to the error any more: what it holds on to would keep the old connections open
        lost = True


def _say(words: str) -> None:
    print(f"dgt: {words}", file=sys.stderr, flush=True)


def _discard(words: str) -> None:
    """Only rank 0 prints."""
