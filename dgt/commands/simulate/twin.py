"""`dgt simulate`: a run on the single-process twin, at sizes no machine has ranks for; its files are a real run's.

The numbers are those of real ranks but for rounding: a rank adds up its neighbours' messages in its own order and keeps
g - W y in place of W y, so that sums differ in their last bits.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgt import problems, reference
from dgt.config import CheckpointConfig, Config, TopologyConfig
from dgt.errors import ConfigError
from dgt.network import rounding
from dgt.network import weights as node_weights
from dgt.network.changing import mean_matrix
from dgt.network.mixing import check_own_weights, mixing_matrix, strategy
from dgt.network.schedules import Schedule, Topology, union_of
from dgt.network.weights import Weights
from dgt.problems.least_squares import LeastSquares, smoothness, summarise
from dgt.processes.placement import Placement
from dgt.reference import bases
from dgt.reference.clipped import Clipped
from dgt.runs.claiming import claim_run_dir, refuse_results
from dgt.runs.holding import held
from dgt.runs.lock import RunLock
from dgt.runs.logger import RunLogger
from dgt.runs.measures import Metrics
from dgt.runs.mirrors import check_logger
from dgt.training import schedules, stopping
from dgt.training.evaluation import Evaluation
from dgt.training.health import Health
from dgt.training.recording import versions
from dgt.training.session import Clock
from dgt.training.setup import DEFAULT_NODES, network_of
from dgt.training.stopping import EarlyStop

log = logging.getLogger(__name__)

MOST_EDGES = 5_000_000  # a few GB
MANY_NODES = 20_000  # drawing their graph takes seconds
NUMBER_BYTES = 8  # float64
HANDSHAKE_BYTES = 2 * NUMBER_BYTES  # (lambda_i, d_i), once to every neighbour


def check(config: Config) -> None:
    """Refuse what only real ranks can do, and graphs too dense to hold."""
    if not problems.class_of(config).is_quadratic:
        raise ConfigError(f"problem={config.problem.name}: dgt simulate knows least squares only; use dgt train")
    only_ranks = {
        "resume": "none", "warm_start": False, "placement": "none", "on_peer_loss": "stop", "bucket_mb": 0,
        "precision": "full",
    }  # fmt: skip
    for key, value in only_ranks.items():
        if getattr(config, key) != value:
            raise ConfigError(f"{key}={getattr(config, key)}: for the ranks of dgt train; dgt simulate has none")
    config.check_lr_is_known("simulate")
    twin_of(config)
    _check_base(config)
    problems.iterations_of(config, nodes_of(config))
    config.check_targets()
    values = config.algorithm.values
    has_momentum = values.get("momentum") or values.get("base") is not None
    if has_momentum and schedules.of(config).momentum(0) is not None:
        raise ConfigError(
            f"schedule={config.schedule.name}: it moves momentum too, which dgt simulate leaves as it is; use dgt train"
        )
    stopping.check(config)
    if config.chaos.name != "none":
        raise ConfigError(f"chaos={config.chaos.name}: for the ranks of dgt train; dgt simulate has none")
    if config.checkpoint != CheckpointConfig():
        raise ConfigError("checkpoint: dgt simulate writes none; leave it out")
    if config.dtype == "float32":
        raise ConfigError("dtype=float32: dgt simulate computes in float64; leave it out")
    if config.device == "cuda":
        raise ConfigError("device=cuda: dgt simulate computes on the CPU; leave it out")
    nodes = nodes_of(config)
    edges = likely_edges(config.topology, nodes)
    if edges > MOST_EDGES:
        name = config.topology.name
        raise ConfigError(f"topology={name}: about {edges:.2g} edges on {nodes} nodes, at most {MOST_EDGES:g} here")


def _check_base(config: Config) -> None:
    """Refuse optimizers of torch, and options of theirs, that the twins do not have."""
    values = config.algorithm.values
    try:
        if values.get("base") is not None:
            bases.base(str(values["base"]), values.get("base_options"))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"algorithm.{error}; use dgt train") from None


def nodes_of(config: Config) -> int:
    """How many there will be, before anything is drawn."""
    return config.nodes or node_weights.own_length(config.weights) or DEFAULT_NODES


def likely_edges(topology: TopologyConfig, nodes: int) -> float:
    """How many edges a graph of this kind has, where that may be more than a few per node; else 0."""
    pairs = nodes * (nodes - 1) / 2
    if topology.name == "complete":
        return pairs
    if topology.name == "erdos_renyi" and topology.probability is not None:
        return topology.probability * pairs
    if topology.name == "geometric":
        return min(1.0, math.pi * topology.radius**2) * pairs
    return 0.0


def evaluated_at(iteration: int, config: Config) -> bool:
    """Whether least squares is evaluated then: at the start, every so often, and at the end."""
    return iteration % config.eval_every == 0 or iteration == config.iterations


def evaluations(
    config: Config, weights: Weights, graph: Topology, seeds: Sequence[int], clock: Clock | None = None
) -> Iterator[tuple[int, Evaluation]]:
    """(iteration, what rank 0 would know) wherever a real run is evaluated."""
    clock = clock or Clock()
    problem = LeastSquares(config.problem.settings, seeds, range(weights.size))
    optimum, plan = problem.optimum(weights), strategy(config.strategy.name, weights)
    sent = traffic(config, graph, copies=len(seeds))
    states = reference.states(
        twin_of(config), Clipped(problem, config.clip), graph, weights, config.strategy.name,
        laziness=config.laziness, lr=schedules.step_size(config), iterations=config.iterations,
        local_steps=config.local_steps, wire=config.wire, **dataclasses.asdict(config.algorithm.settings),
    )  # fmt: skip
    with np.errstate(all="ignore"):  # a diverging run is noticed at its next evaluation, and told once
        for state in states:
            if not evaluated_at(state.iteration, config):
                continue
            clock.evaluating()
            found = reference.network_metrics(state, problem, weights, plan)
            means, average, nodes = found.pop("means"), found.pop("average"), found.pop("nodes")
            metrics: Metrics = {**summarise(means, average, optimum), **found}
            metrics["bytes_sent"] = np.full(len(seeds), sent.after(state.iteration))
            clock.resume()
            each = {name: values[:, 0] for name, values in nodes.items()}
            yield state.iteration, Evaluation(metrics, each, np.linalg.norm(average, axis=-1))


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that all ranks together would have sent, as their transports count them."""

    handshake: int
    exchanges: list[int]
    """Of every exchange until they repeat; on a graph all are alike."""
    every: int
    """Steps from one exchange to the next."""

    def after(self, iterations: int) -> int:
        number, period = iterations // self.every, len(self.exchanges)
        return self.handshake + number // period * sum(self.exchanges) + sum(self.exchanges[: number % period])


def traffic(config: Config, graph: Topology, copies: int = 1) -> Traffic:
    """Bytes of the handshake and of every exchange: the algorithm's class says how many vectors that is."""
    union = union_of(graph)
    nodes, edges = union.number_of_nodes(), union.number_of_edges()
    numbers = copies * config.problem.dimension
    width = rounding.bytes_per_number(config.wire, numbers, NUMBER_BYTES)
    used = graph.edges_per_step() if isinstance(graph, Schedule) else [edges]
    sent = [config.algorithm.kind.bytes_per_exchange(nodes, each, numbers, NUMBER_BYTES, width) for each in used]
    return Traffic(2 * edges * HANDSHAKE_BYTES, sent, config.local_steps)


def twin_of(config: Config) -> reference.Twin:
    """The twin of the algorithm: beside those of the package, or an attribute `twin` of a class from outside."""
    twin = config.algorithm.kind.twin or reference.named(config.algorithm.name)
    if twin is None:
        raise ConfigError(
            f"algorithm={config.algorithm.name}: it has no twin for dgt simulate, its class no attribute `twin`; use "
            "dgt train"
        )
    return twin


def simulate(
    config: Config, show: str = "text", command: str = "", swept: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """One run, written to its run directory; returns its summary. Raises `TrainingError` if it diverges."""
    check(config)
    check_logger(config)
    if nodes_of(config) >= MANY_NODES:
        log.info("drawing %s on %d nodes", config.topology.name, nodes_of(config))
    weights, graph = network_of(config, Placement("alone"))
    if isinstance(graph, Schedule) and config.algorithm.kind.twin is not None:
        raise ConfigError(
            f"algorithm={config.algorithm.name}: its own twin takes one W, and topology={config.topology.name} has one "
            "for every exchange; use dgt train"
        )
    check_rows(config, weights, graph)
    run_dir = claim_run_dir(config, swept)
    with held(Path(run_dir), log.info) as lock:
        refuse_results(Path(run_dir))  # another process may have used the directory before the lock was taken
        return _written(dataclasses.replace(config, run_dir=run_dir), weights, graph, lock, show, command)


def check_rows(config: Config, weights: Weights, graph: Topology) -> None:
    """Refuse a network whose rows the algorithm cannot take, as its optimizer does on ranks."""
    kind = config.algorithm.kind
    if kind.least_own_weight and not isinstance(graph, Schedule):
        W = mixing_matrix(graph, strategy(config.strategy.name, weights).mixing_weights, config.laziness)
        check_own_weights(dict(enumerate(W.diagonal().tolist())), kind.least_own_weight, kind.__name__)


def _written(
    config: Config, weights: Weights, graph: Topology, lock: RunLock, show: str, command: str
) -> dict[str, Any]:
    health = Health(config, graph, weights, smoothness(config.problem.settings), torch.float64)
    logger = RunLogger(config, int(weights.size), speaks=True, command=command, simulated=True, lock=lock)
    logger.start(first=0)
    logger.environment({**versions(), "ranks": "none: dgt simulate is one process"})
    mixing_weights = strategy(config.strategy.name, weights).mixing_weights
    W = (mean_matrix if isinstance(graph, Schedule) else mixing_matrix)(graph, mixing_weights, config.laziness)
    logger.network(0, weights, W, graph=graph)
    clock, early = Clock(), EarlyStop(config)
    try:
        for iteration, measured in evaluations(config, weights, graph, [config.seed], clock):
            health.check(iteration, measured)
            timed = measured.with_times(clock.training, clock.evaluation_share)
            logger.record(iteration, timed.metrics, timed.nodes)
            if early.measured(iteration, measured.metrics):
                break
    except BaseException:
        logger.close()
        raise
    return logger.finish(show, early.reason)
