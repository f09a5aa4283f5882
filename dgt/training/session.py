"""One node's part of a run: its problem, its optimizer, and everything a checkpoint holds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import networkx as nx
import torch

from dgt import algorithms, problems
from dgt.algorithms import DecentralizedOptimizer
from dgt.config import Config
from dgt.errors import PeerError, TrainingError
from dgt.exchange.buffers import MixedBuffers
from dgt.exchange.handing_over import hand_over
from dgt.exchange.network import Network, network_facts
from dgt.network import mixing
from dgt.network.members import among
from dgt.network.schedules import Schedule, Topology, union_of
from dgt.network.weights import Weights
from dgt.problems import Problem
from dgt.processes.node import Node
from dgt.processes.regroup import Members
from dgt.training import schedules
from dgt.training.checkpoints.state import Tree, random_state, restore_random_state, seed_generators
from dgt.training.evaluation import Evaluation, evaluate
from dgt.training.pace import Pace
from dgt.training.setup import alone, row_of_members
from dgt.training.stepping import Stepping

Roll = dict[int, int]  # node -> how often its process was started again
MEMBERS = "members"  # the fact that names the nodes of a checkpoint, where some are lost
MAY_DIFFER = ("iterations", "transport", "overlap", "placement", "stop")  # on resume: the numbers do not depend on them


class Session:
    """Made by `trainer.train`, by all ranks together.

    weights, graph  of the whole network (the graph may be a schedule), nodes that are lost included
    network         this node's connections to those who are there
    seeds           trained side by side in the problem's model
    """

    def __init__(
        self,
        config: Config,
        weights: Weights,
        graph: Topology,
        network: Network,
        problem: Problem,
        optimizer: DecentralizedOptimizer,
        seeds: Sequence[int],
    ) -> None:
        self.config, self.node, self.network, self.problem, self.seeds = config, network.node, network, problem, seeds
        self.whole = graph, weights
        self.node.nodes = int(weights.size)
        self.graph, self.weights = self._of_members()
        self.returned = ""  # which nodes came back when the run was resumed, in words
        self.clock, self.losses, self.pace = Clock(), IntervalLoss(self.node.name), Pace(config)
        self.delay = 0.0  # seconds before every gradient: a rehearsed slow node
        self._use(optimizer)

    @property
    def is_whole(self) -> bool:
        """Whether all nodes of the network are there."""
        return self.node.size == self.whole[1].size

    def _use(self, optimizer: DecentralizedOptimizer) -> None:
        self.optimizer = optimizer
        self.stepping = Stepping(self.config, self.problem, optimizer, self.node.device)
        self.buffers = MixedBuffers(self.problem.model, self.network) if self.problem.mixes_buffers else None

    def restart_optimizer(self, iteration: int) -> None:
        """A new optimizer, and with it new trackers, at the model's parameters."""
        model, network = self.problem.model, self.network
        optimizer = algorithms.from_config(self.config, self.problem.parameters(), model, network)
        optimizer.iteration = iteration
        self._use(optimizer)

    def evaluate(self) -> Evaluation | None:
        """What the network has achieved, on rank 0; None elsewhere. All ranks call it at the same iteration."""
        self.clock.evaluating()
        evaluation = evaluate(self.problem, self.optimizer, self.losses.mean())
        self.losses.clear()
        self.pace.compare(self.node)
        self.clock.resume()
        return evaluation and evaluation.with_times(self.clock.training, self.clock.evaluation_share)

    def regroup(self, before: Roll | None = None, leaving: Sequence[int] = ()) -> str:
        """Meet those who are left and those who come back, and start their network, with new trackers on all.

        Everybody has its own parameters, who comes back those of its neighbours. lambda is scaled over those who are
        there: from here on the run is for their objective. Returns what happened, in words; nothing on a node that
        leaves.

        before    who was there when it was last told what happened, if that is not now
        leaving   nodes that this one knows to leave on purpose
        """
        before = before or ({} if self.node.is_new else self.roll())
        while True:
            try:
                return self._regroup_once(before, leaving)
            except PeerError:  # another one is lost meanwhile
                pass

    def _regroup_once(self, before: Roll, leaving: Sequence[int]) -> str:
        node = self.node
        self.optimizer.close()
        node.close_connections()
        while True:
            agreed = node.change_members(self.optimizer.iteration, leaving)
            if node.name in agreed.leaving:
                return ""
            self.optimizer.iteration = agreed.iteration
            words = changes_in_words(before or dict(agreed.before), self.roll(), agreed)
            self.graph, self.weights = self._of_members()
            # before connecting: a rank still connecting when the others exit would take them for lost, and train alone
            if nx.is_connected(union_of(self.graph)):
                break
            if agreed.stop or not node.wait_for_newcomers():
                raise TrainingError(f"{words}, and the network falls apart: {self._pieces()}")
        node.reconnect()
        row = None if self.is_whole else row_of_members(self.config, node, self.whole[1], self.whole[0])
        self.network = self.network.among(self.graph, self.weights, row)
        self.problem.go_on_with(node.members, self.weights)
        if agreed.new:
            self._hand_over([node.members.index(name) for name in agreed.new], agreed.iteration)
        self.restart_optimizer(agreed.iteration)
        self.losses.keep_if_all_have(node)
        return f"{words}; {node.size} nodes go on for their own objective, trackers start anew"

    def _pieces(self) -> str:
        names, union = self.node.members, union_of(self.graph)
        pieces = [sorted(names[rank] for rank in piece) for piece in nx.connected_components(union)]
        return " and ".join(map(str, pieces))

    def _hand_over(self, new: Sequence[int], iteration: int) -> None:
        """Nodes that come back get the parameters of their neighbours, and the time that the run has taken."""
        node, clock = self.node, self.clock
        hand_over(self.network, union_of(self.graph), self.weights, new, self.problem.model)
        times = node.all_gather([clock.training, clock.evaluation])
        if node.is_new:
            clock.training, clock.evaluation = times.max(0).values.tolist()
            seed_generators(self.seeds[0], iteration * node.size + node.name + 1)  # not those of its first start again
            node.is_new = False

    def roll(self) -> Roll:
        """Who is there, and how often the process of each was started again."""
        return {name: self.node.attempts.get(name, 0) for name in self.node.members}

    def _of_members(self) -> tuple[Topology, Weights]:
        """Graph and weights of those who are there: the original ones when all are."""
        if self.is_whole:
            return self.whole
        if self.node.is_new and self.node.size == 1:  # nobody else yet
            return alone()
        return among(*self.whole, self.node.members)

    def step(self, iteration: int) -> None:
        """One gradient, one exchange; or nothing, where a slow node leaves a local step out."""
        if self.pace.leaves_out(iteration):
            self.optimizer.leave_out_step()
            return
        began = time.perf_counter() if self.pace.adapts else 0.0
        self.optimizer.zero_grad()
        self.stepping.set_lr(iteration)
        if self.delay:
            time.sleep(self.delay)
        with self.stepping.autocast():
            loss = self.problem.backward(iteration)
        if self.pace.adapts:
            self.pace.took(time.perf_counter() - began)
        self.losses.add(loss, iteration)
        self.stepping.clip()
        self.optimizer.step()
        if self.buffers is not None:
            self.buffers.mix()

    def facts(self) -> dict[str, str]:
        """What must be the same in a run that continues this one."""
        facts = {name: text for name, text in run_facts(self.config, self.seeds).items() if name not in MAY_DIFFER}
        graph = self.whole[0]
        union, weights = mixing.checked(union_of(graph), self.whole[1], self.whole[1].size)
        graph = graph if isinstance(graph, Schedule) else union
        return {
            "world": f"{weights.size} nodes",
            "ranks_per_node": str(self.node.local.size),
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
        everybody = node.world
        if int(everybody.all_reduce(torch.tensor([bool(self.mean())], dtype=torch.int64))) < everybody.size:
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


def changes_in_words(before: Roll, now: Roll, agreed: Members) -> str:
    """Who is lost, has left or comes back; who was lost and is back already is both."""
    lost = [name for name in before if now.get(name) != before[name] and name not in agreed.leaving]
    left = [name for name in agreed.leaving if name in before]
    back = [name for name in now if now[name] != before.get(name)]
    said = [f"{_named(lost)} lost"] * bool(lost) + [f"{_named(left)} left as asked"] * bool(left)
    whose = "their" if len(back) > 1 else "its"
    said += [f"{_named(back)} back with the parameters of {whose} neighbours"] * bool(back)
    if not said:
        return f"connections broke at iteration {agreed.iteration}, and all nodes are there"
    return f"{', '.join(said)} at iteration {agreed.iteration}"


def _named(names: Sequence[int]) -> str:
    return f"node{'s' * (len(names) > 1)} {', '.join(map(str, names))}"


def run_facts(config: Config, seeds: Sequence[int]) -> dict[str, str]:
    """What all ranks must have been started with alike, besides the network itself."""
    problem, local = config.problem, problems.class_of(config).local_settings
    values = problem.values if problem.target is None else {"target": problem.target, "arguments": problem.values}
    return {
        "seed": ", ".join(map(str, seeds)),
        **config.algorithm.facts(),
        "lr": repr(config.lr),
        "iterations": f"{config.iterations}, evaluated every {config.eval_every}",
        "schedule": str(schedules.of(config)),
        "clip": f"{config.clip}",
        "precision": config.precision,
        "stop": f"{config.stop.when}, patience {config.stop.patience}",
        "dtype": config.dtype,
        "transport": config.transport,
        "overlap": f"{config.overlap}",
        "problem.name": problem.name,
        **{f"problem.{name}": str(value) for name, value in values.items() if name not in local},
    }
