"""One training run as one rank sees it. Read this file to see the whole system."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import networkx as nx
import numpy as np

from dgt import algorithms, problems
from dgt.checks import ConfigError
from dgt.config import Config
from dgt.exchange.agreement import agree, together
from dgt.exchange.buffers import MixedBuffers
from dgt.exchange.network import Network
from dgt.network.weights import Weights
from dgt.problems import Problem
from dgt.training.metrics import Metrics, evaluate
from dgt.world import Node, cache_dir

Record = Callable[[int, Metrics], None]
LOCAL_KEYS = ("root",)  # hosts may keep their data in different places


class TrainingError(RuntimeError):
    """The run cannot go on; said by the rank that finds out."""


def train(
    config: Config,
    node: Node,
    weights: Weights,
    graph: nx.Graph,
    record: Record,
    seeds: Sequence[int] | None = None,
) -> None:
    """Train this node; rank 0 calls `record(iteration, metrics)` with the network's metrics at each evaluation.

    Several seeds are trained side by side in one model: the same graph and messages, independent numbers.
    """
    seeds = [config.seed] if seeds is None else list(seeds)
    agree(node, run_facts(config, seeds))
    network = Network(node, graph, weights, config.strategy.name, config.laziness, config.transport)
    problem = together(node, lambda: _problem(config, weights, node, seeds))
    optimizer = algorithms.from_config(config, problem.parameters(), problem.model, network)
    buffers = MixedBuffers(problem.model, network) if problem.mixes_buffers else None
    clock, losses = Clock(), IntervalLoss(node.rank)
    for iteration in range(config.iterations + 1):
        if _is_due(iteration, config, problem):
            clock.evaluating()
            metrics = evaluate(problem, optimizer, losses.take())
            clock.resume()
            if metrics is not None:
                _refuse_divergence(metrics.get("loss"), iteration, config.lr)
                times = {"seconds": clock.training, "evaluation_share": clock.evaluation_share}
                record(iteration, metrics | {name: np.full(problem.copies, value) for name, value in times.items()})
        if iteration < config.iterations:
            optimizer.zero_grad()
            losses.add(problem.backward(iteration), iteration)
            optimizer.step()
            if buffers is not None:
                buffers.mix()
    optimizer.drain()


def _problem(config: Config, weights: Weights, node: Node, seeds: Sequence[int]) -> Problem:
    problem = problems.from_config(config, weights, node.rank, seeds, node.device, cache_dir())
    if config.bucket_mb and not problem.uses_autograd:
        raise ConfigError(
            f"bucket_mb={config.bucket_mb:g}: problem={config.problem.name} has no backward to start it in"
        )
    return problem


def _is_due(iteration: int, config: Config, problem: Problem) -> bool:
    if iteration in (0, config.iterations):
        return iteration == config.iterations or problem.measures_start
    return iteration % config.eval_every == 0


class IntervalLoss:
    """Mean of a node's losses since the last evaluation; a loss that is not a number ends the run."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._losses: list[float] = []

    def add(self, loss: float | None, iteration: int) -> None:
        if loss is None:
            return
        if not math.isfinite(loss):
            raise TrainingError(
                f"node {self._node}: the loss is {loss} at iteration {iteration}; "
                "a smaller lr may help, if the data is sound"
            )
        self._losses.append(loss)

    def take(self) -> dict[str, float]:
        losses, self._losses = self._losses, []
        return {"loss": math.fsum(losses) / len(losses)} if losses else {}


class Clock:
    """Seconds spent training and evaluating."""

    def __init__(self) -> None:
        self.training = self.evaluation = 0.0
        self._since = time.perf_counter()

    def evaluating(self) -> None:
        self.training += self._lap()

    def resume(self) -> None:
        self.evaluation += self._lap()

    @property
    def evaluation_share(self) -> float:
        return self.evaluation / (self.training + self.evaluation)

    def _lap(self) -> float:
        before, self._since = self._since, time.perf_counter()
        return self._since - before


def run_facts(config: Config, seeds: Sequence[int]) -> dict[str, str]:
    """What all ranks must have been started with alike, besides the network itself."""
    problem = dataclasses.asdict(config.problem)
    return {
        "seed": ", ".join(map(str, seeds)),
        "algorithm": config.algorithm.name,
        "lr": repr(config.lr),
        "iterations": f"{config.iterations}, evaluated every {config.eval_every}",
        "dtype": config.dtype,
        "transport": config.transport,
        "overlap": f"{config.overlap}",
        **{f"problem.{name}": str(value) for name, value in problem.items() if name not in LOCAL_KEYS},
    }


def _refuse_divergence(loss: np.ndarray | None, iteration: int, lr: float) -> None:
    if loss is not None and not np.isfinite(loss).all():
        raise TrainingError(f"the loss is not finite at iteration {iteration}: lr={lr:g} is too large for this problem")
