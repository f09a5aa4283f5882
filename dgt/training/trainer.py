"""One training run as one rank sees it. Read this file to see the whole system."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import networkx as nx
import numpy as np

from dgt import algorithms, problems
from dgt.config import Config
from dgt.exchange.agreement import agree
from dgt.exchange.network import Network
from dgt.network.weights import Weights
from dgt.training.metrics import Metrics, evaluate
from dgt.world import Node

Record = Callable[[int, Metrics], None]


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
    network = Network(node, graph, weights, config.strategy.name, config.laziness)
    problem = problems.from_config(config, weights, node.rank, seeds, node.device)
    optimizer = algorithms.from_name(
        config.algorithm.name, problem.model.parameters(), config.lr, network, config.overlap
    )
    clock = Clock()
    for iteration in range(config.iterations + 1):
        if iteration % config.eval_every == 0 or iteration == config.iterations:
            clock.evaluating()
            metrics = evaluate(problem, optimizer)
            if metrics is not None:
                _refuse_divergence(metrics["loss"], iteration, config.lr)
                record(iteration, metrics | {"seconds": np.full(problem.copies, clock.training)})
            clock.resume()
        if iteration < config.iterations:
            problem.backward(iteration)
            optimizer.step()
    optimizer.drain()


class Clock:
    """Seconds spent training, evaluations left out."""

    def __init__(self) -> None:
        self.training = 0.0
        self._since = time.perf_counter()

    def evaluating(self) -> None:
        self.training += time.perf_counter() - self._since

    def resume(self) -> None:
        self._since = time.perf_counter()


def run_facts(config: Config, seeds: Sequence[int]) -> dict[str, str]:
    """What all ranks must have been started with alike, besides the network itself."""
    return {
        "seed": ", ".join(map(str, seeds)),
        "algorithm": config.algorithm.name,
        "lr": repr(config.lr),
        "iterations": f"{config.iterations}, evaluated every {config.eval_every}",
        "dtype": config.dtype,
        **{f"problem.{name}": str(value) for name, value in dataclasses.asdict(config.problem).items()},
    }


def _refuse_divergence(loss: np.ndarray, iteration: int, lr: float) -> None:
    if not all(math.isfinite(value) for value in loss):
        raise TrainingError(f"the loss is not finite at iteration {iteration}: lr={lr:g} is too large for this problem")
