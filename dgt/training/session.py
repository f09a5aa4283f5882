"""One node's part of a run: its problem, its optimizer, and everything a checkpoint holds."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import networkx as nx

from dgt import algorithms, problems
from dgt.checks import ConfigError, TrainingError
from dgt.config import Config
from dgt.exchange.agreement import agree, together
from dgt.exchange.buffers import MixedBuffers
from dgt.exchange.network import Network
from dgt.network.weights import Weights, normalise
from dgt.node import Node
from dgt.problems import Problem
from dgt.training.state import Tree, random_state, restore_random_state, seed_generators
from dgt.world import cache_dir

LOCAL_KEYS = ("root",)  # hosts may keep their data in different places
MAY_DIFFER = ("iterations", "transport", "overlap", "placement")  # on resume: the numbers do not depend on them


class Session:
    """Made together by all ranks."""

    def __init__(self, config: Config, node: Node, weights: Weights, graph: nx.Graph, seeds: Sequence[int]) -> None:
        self.config, self.node, self.graph, self.weights, self.seeds = config, node, graph, weights, seeds
        agree(node, run_facts(config, seeds))
        self.network = Network(
            node, graph, weights, config.strategy.name, config.laziness, config.transport, crc=config.crc
        )
        seed_generators(seeds[0])  # whatever a model starts from is the same on all nodes
        self.problem = together(node, self._make_problem)
        seed_generators(seeds[0], node.rank + 1)  # dropout and the like are not
        self.clock, self.losses = Clock(), IntervalLoss(node.name)
        self.start_optimizer()

    def _make_problem(self) -> Problem:
        config, node = self.config, self.node
        problem = problems.from_config(config, self.weights, node.rank, self.seeds, node.device, cache_dir())
        if config.bucket_mb and not problem.uses_autograd:
            raise ConfigError(
                f"bucket_mb={config.bucket_mb:g}: problem={config.problem.name} has no backward to start it in"
            )
        return problem

    def start_optimizer(self) -> None:
        """A new optimizer, and with it new trackers, at the model's parameters."""
        model, network = self.problem.model, self.network
        self.optimizer = algorithms.from_config(self.config, self.problem.parameters(), model, network)
        self.buffers = MixedBuffers(model, network) if self.problem.mixes_buffers else None

    def go_on_without_the_lost(self) -> str:
        """Meet those who are left and start their network, with new trackers at everybody's own parameters.

        lambda is scaled anew over them: from here on the run is for their objective. Returns what happened, in words.
        """
        before, weights, graph = self.node.members, self.weights, self.graph
        self.optimizer.close()
        self.node.turn_away()
        kept, iteration = self.node.reunite(self.optimizer.iteration)
        lost = [name for name in before if name not in self.node.members]
        words = f"node{'s' * (len(lost) > 1)} {', '.join(map(str, lost))} lost at iteration {iteration}"
        self.graph = nx.convert_node_labels_to_integers(graph.subgraph(kept), ordering="sorted")
        if not nx.is_connected(self.graph):
            pieces = [sorted(before[kept[rank]] for rank in piece) for piece in nx.connected_components(self.graph)]
            raise TrainingError(f"{words}, and the network falls apart: {' and '.join(map(str, pieces))}")
        self.weights = normalise(weights[kept])
        self.network = self.network.among(kept, self.graph, self.weights)
        self.problem.go_on_with(self.node.members, self.weights)
        self.start_optimizer()
        self.optimizer.iteration = iteration
        return f"{words}; {self.node.size} nodes go on for their own objective, trackers start anew"

    def step(self, iteration: int) -> None:
        """One gradient, one exchange."""
        self.optimizer.zero_grad()
        self.losses.add(self.problem.backward(iteration), iteration)
        self.optimizer.step()
        if self.buffers is not None:
            self.buffers.mix()

    def facts(self) -> dict[str, str]:
        """What must be the same in a run that continues this one."""
        facts = {name: text for name, text in run_facts(self.config, self.seeds).items() if name not in MAY_DIFFER}
        return {
            "world": f"{self.node.size} nodes",
            **self.network.facts,
            **facts,
            "model": self.optimizer.flat.layout(),
            "traffic": f"wire {self.config.wire}, local_steps {self.config.local_steps}",
        }

    def state(self) -> Tree:
        """Not a copy: it changes with the next step."""
        return {
            "optimizer": self.optimizer.live_state(),  # first: it takes in what is still travelling
            "model": self.problem.model.state_dict(),
            "problem": self.problem.state_dict(),
            "losses": list(self.losses.losses),
            "seconds": [self.clock.training, self.clock.evaluation, self.network.wait_seconds],
            "bytes_sent": self.network.bytes_sent,
            "random": random_state(self.node.device),
        }

    def load(self, state: Tree) -> None:
        self.problem.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.problem.load_state_dict(state["problem"])
        self.losses.losses = list(state["losses"])
        self.clock.training, self.clock.evaluation, *waited = state["seconds"]
        self.network.wait_before += sum(waited) - self.network.wait_seconds
        self.network.bytes_before += state["bytes_sent"] - self.network.bytes_sent
        restore_random_state(state["random"], self.node.device)


class IntervalLoss:
    """Mean of a node's losses since the last evaluation; a loss that is not a number ends the run."""

    def __init__(self, node: int) -> None:
        self._node = node
        self.losses: list[float] = []

    def add(self, loss: float | None, iteration: int) -> None:
        if loss is None:
            return
        if not math.isfinite(loss):
            raise TrainingError(
                f"node {self._node}: the loss is {loss} at iteration {iteration}; "
                "a smaller lr may help, if the data is sound"
            )
        self.losses.append(loss)

    def take(self) -> dict[str, float]:
        losses, self.losses = self.losses, []
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
