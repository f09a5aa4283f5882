"""One training run as one rank sees it. Read this file to see the whole system.

A launcher has started this process (`launching/`), and it has joined the others (`processes/join.py`); the config was
composed and checked before (`config/`). What may happen on the way, and what is written, is beside it: `guard.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dgt import algorithms
from dgt.config import Config
from dgt.network.schedules import Topology
from dgt.network.weights import Weights
from dgt.processes.agreement import agree
from dgt.processes.node import Node
from dgt.training.session import Session, run_facts
from dgt.training.setup import connect, final_graph, make_problem, place_ranks

if TYPE_CHECKING:
    from dgt.training.ending import Stopped
    from dgt.training.guard import Guard


def train(
    config: Config, node: Node, weights: Weights, drawn: Topology, guard: Guard, seeds: Sequence[int] | None = None
) -> Stopped | None:
    """Train this node; `guard` is told what the network achieved, and decides when to stop.

    config   the same on all ranks
    weights  lambda [nodes]
    drawn    the graph as `network/` draws it from the config
    guard    resumes, records, saves, handles signals and lost ranks; returns what `train` returns
    seeds    trained side by side in one model: the same graph and messages, independent numbers
    """
    seeds = [config.seed] if seeds is None else list(seeds)
    graph = final_graph(config, node, weights, drawn)  # network/: edges swapped by rank 0, if the topology asks for it
    guard.name_nodes(node, weights)  # fewer ranks than nodes, where a run that has lost some is resumed
    place_ranks(config, node, weights, graph)  # which rank is which node
    agree(node, run_facts(config, seeds))  # processes/: all ranks were started alike
    network = connect(config, node, weights, graph)  # exchange/: the neighbours' (lambda_j, d_j) -> mixing row
    problem = make_problem(config, node, weights, seeds)  # problems/: this node's data, model and loss
    optimizer = algorithms.from_config(config, problem.parameters(), problem.model, network)  # gradient -> exchange
    session = Session(config, weights, graph, network, problem, optimizer, seeds)  # all that a checkpoint holds
    return guard.run(session, loop)


def loop(session: Session, guard: Guard, first: int) -> int | None:
    """From iteration `first` to the last; returns where all ranks were asked to stop, if they were."""
    for iteration in range(first, session.config.iterations + 1):
        if guard.evaluates(iteration):
            guard.record(iteration, session.evaluate())  # metrics of the whole network, on rank 0
        if guard.before_step(iteration):  # saves when it is time to
            return iteration
        if iteration < session.config.iterations:
            session.step(iteration)  # backward, exchange with the neighbours, next parameters
    return None
