"""One node's part of a run: its problem, its optimizer, and everything a checkpoint holds."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import networkx as nx
import torch

from dgt import algorithms, problems
from dgt.config import Config
from dgt.errors import ConfigError, PeerError, TrainingError
from dgt.exchange.buffers import MixedBuffers
from dgt.exchange.network import Network, network_facts
from dgt.network import mixing
from dgt.network.members import among, row_among
from dgt.network.mixing import MixingRow
from dgt.network.weights import Weights
from dgt.problems import Problem
from dgt.processes.agreement import agree, together
from dgt.processes.environment import cache_dir
from dgt.processes.node import Node
from dgt.training.checkpoints.state import Tree, random_state, restore_random_state, seed_generators

LOCAL_KEYS = ("root",)  # hosts may keep their data in different places
MEMBERS = "members"  # the fact that names the nodes of a checkpoint, where some are lost
MAY_DIFFER = ("iterations", "transport", "overlap", "placement")  # on resume: the numbers do not depend on them


class Session:
    """Made together by all ranks."""

    def __init__(self, config: Config, node: Node, weights: Weights, graph: nx.Graph, seeds: Sequence[int]) -> None:
        self.config, self.node, self.seeds = config, node, seeds
        self.whole = graph, weights  # of all nodes, those that are lost included
        self.returned = ""  # which nodes came back when the run was resumed, in words
        agree(node, run_facts(config, seeds))
        settings = (config.strategy.name, config.laziness, config.transport, config.crc)
        if self.is_whole:
            self.graph, self.weights = graph, weights
            self.network = Network(node, graph, weights, *settings)
        else:
            self.graph, self.weights = among(*self.whole, node.members)
            self.network = Network(node, self.graph, self.weights, *settings, self._row())
        seed_generators(seeds[0])  # whatever a model starts from is the same on all nodes
        self.problem = together(node, lambda: self._make_problem(weights))
        if not self.is_whole:
            self.problem.go_on_with(node.members, self.weights)
        seed_generators(seeds[0], node.name + 1)  # dropout and the like are not
        self.clock, self.losses = Clock(), IntervalLoss(node.name)
        self.start_optimizer()

    @property
    def is_whole(self) -> bool:
        """Whether all nodes of the network are there."""
        return self.node.size == self.whole[1].size

    def _row(self) -> MixingRow:
        config, node = self.config, self.node
        whole = mixing.checked(*self.whole, self.whole[1].size)
        return row_among(*whole, config.strategy.name, config.laziness, node.members, node.name)

    def _make_problem(self, weights: Weights) -> Problem:
        config, node = self.config, self.node
        problem = problems.from_config(config, weights, node.name, self.seeds, node.device, cache_dir())
        if config.bucket_mb and not problem.uses_autograd:
            raise ConfigError(
                f"bucket_mb={config.bucket_mb:g}: problem={config.problem.name} has no backward to start it in"
            )
        return problem

    def start_optimizer(self, iteration: int = 0) -> None:
        """A new optimizer, and with it new trackers, at the model's parameters."""
        model, network = self.problem.model, self.network
        optimizer = algorithms.from_config(self.config, self.problem.parameters(), model, network)
        optimizer.iteration = iteration
        self.optimizer = optimizer
        self.buffers = MixedBuffers(model, network) if self.problem.mixes_buffers else None

    def regroup(self) -> str:
        """Meet those who are left and start their network, with new trackers at everybody's own parameters.

        lambda is scaled anew over them: from here on the run is for their objective. Returns what happened, in words.
        """
        before = self.node.members
        while True:
            try:
                return self._regroup_once(before)
            except PeerError:  # another one is lost meanwhile
                pass

    def _regroup_once(self, before: list[int]) -> str:
        self.optimizer.close()
        self.node.close_connections()
        iteration = self.optimizer.iteration = self.node.agree_on_survivors(self.optimizer.iteration)
        words = _loss_in_words(before, self.node.members, iteration)
        graph, weights = among(*self.whole, self.node.members)
        # before connecting: a rank still connecting when the others exit would take them for lost, and train alone
        if not nx.is_connected(graph):
            names = self.node.members
            pieces = [sorted(names[rank] for rank in piece) for piece in nx.connected_components(graph)]
            raise TrainingError(f"{words}, and the network falls apart: {' and '.join(map(str, pieces))}")
        self.node.reconnect()
        self.network = self.network.among(graph, weights, self._row())
        self.graph, self.weights = graph, weights
        self.problem.go_on_with(self.node.members, weights)
        self.start_optimizer(iteration)
        self.losses.keep_if_all_have(self.node)
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
        graph, weights = mixing.checked(*self.whole, self.whole[1].size)
        return {
            "world": f"{weights.size} nodes",
            **network_facts(graph, weights, self.config.strategy.name, self.config.laziness),
            **facts,
            "model": self.optimizer.flat.layout(),
            "traffic": f"wire {self.config.wire}, local_steps {self.config.local_steps}",
            **({} if self.is_whole else {MEMBERS: " ".join(map(str, self.node.members))}),
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

    def load(self, state: Tree, trackers: bool = True) -> None:
        """Continue from there; without its trackers, which are new then, at the iteration of the state."""
        self.problem.model.load_state_dict(state["model"])
        if trackers:
            self.optimizer.load_state_dict(state["optimizer"])
        else:
            self.optimizer.flat.follow()
            self.optimizer.iteration = int(state["optimizer"]["dgt"]["iteration"])
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
        self._evaluated: list[float] = []

    def add(self, loss: float | None, iteration: int) -> None:
        if loss is None:
            return
        if not math.isfinite(loss):
            raise TrainingError(
                f"node {self._node}: the loss is {loss} at iteration {iteration}; "
                "a smaller lr may help, if the data is sound"
            )
        self.losses.append(loss)

    def mean(self) -> dict[str, float]:
        """Of the losses since the last evaluation; where that is made again after a loss, of the same as before."""
        losses = self.losses or self._evaluated
        return {"loss": math.fsum(losses) / len(losses)} if losses else {}

    def clear(self) -> None:
        """The evaluation is complete."""
        self.losses, self._evaluated = [], self.losses or self._evaluated

    def keep_if_all_have(self, node: Node) -> None:
        """Ranks that were at different points of a step go on from one: an evaluation takes all losses, or none."""
        if int(node.all_reduce(torch.tensor([bool(self.mean())], dtype=torch.int64))) < node.size:
            self.losses, self._evaluated = [], []


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


def _loss_in_words(before: list[int], members: list[int], iteration: int) -> str:
    lost = [name for name in before if name not in members]
    if not lost:
        return f"connections broke at iteration {iteration}, and all nodes are there"
    return f"node{'s' * (len(lost) > 1)} {', '.join(map(str, lost))} lost at iteration {iteration}"


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
