"""The slow twins: the same algorithms on stacked arrays in one process, with the whole sparse W.

Every distributed run can be repeated here and compared number by number: `states` gives every state of a run.
"""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from dgt.network.mixing import mixing_matrix, strategy
from dgt.network.weights import Weights
from dgt.reference.allreduce import allreduce
from dgt.reference.dsgd import dsgd
from dgt.reference.gradient_tracking import gradient_tracking
from dgt.reference.members import with_returned, without
from dgt.reference.stacked import StackedProblem, State, StepSize, mix, network_metrics

__all__ = [
    "StackedProblem", "State", "StepSize", "allreduce", "dsgd", "gradient_tracking", "mix", "network_metrics", "states",
    "with_returned", "without",
]  # fmt: skip


def states(
    algorithm: str,
    problem: StackedProblem,
    graph: nx.Graph,
    weights: Weights,
    strategy_name: str,
    *,
    laziness: float,
    lr: StepSize,
    iterations: int,
    local_steps: int = 1,
    wire: str = "full",
) -> Iterator[State]:
    """Every state of a run, the start included."""
    plan = strategy(strategy_name, weights)
    if algorithm == "allreduce":
        return allreduce(problem, weights, plan, lr, iterations)
    W = mixing_matrix(graph, plan.mixing_weights, laziness)
    if algorithm == "dsgd":
        return dsgd(problem, W, plan, lr, iterations)
    return gradient_tracking(problem, W, plan, lr, iterations, local_steps, wire)
