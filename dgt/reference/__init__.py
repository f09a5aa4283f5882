"""The slow twins: the same algorithms on stacked arrays in one process, with the whole sparse W.

Every distributed run can be repeated here and compared number by number: `states` gives every state of a run. The twin
of `algorithm=x` is `TWIN` of the module `x.py` here, a function

    twin(problem, W, strategy, lr, iterations, *, wire="full", local_steps=1, **settings) -> Iterator[State]
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from dgt.network import changing
from dgt.network.mixing import mixing_matrix, strategy
from dgt.network.schedules import Schedule, Topology
from dgt.network.weights import Weights
from dgt.reference.allreduce import allreduce
from dgt.reference.dsgd import dsgd
from dgt.reference.exact_diffusion import exact_diffusion
from dgt.reference.gradient_tracking import gradient_tracking
from dgt.reference.members import taken_in, with_returned, without
from dgt.reference.stacked import StackedProblem, State, StepSize, mix, network_metrics
from dgt.reference.wire import Mixing

__all__ = [
    "StackedProblem", "State", "StepSize", "Twin", "allreduce", "dsgd", "exact_diffusion", "gradient_tracking", "mix",
    "named", "network_metrics", "states", "taken_in", "with_returned", "without",
]  # fmt: skip

Twin = Callable[..., Iterator[State]]


def named(algorithm: str) -> Twin | None:
    """The twin of `algorithm=x`, if it has one."""
    if algorithm not in (module.name for module in pkgutil.iter_modules(__path__)):
        return None
    found: Twin | None = getattr(importlib.import_module(f"{__name__}.{algorithm}"), "TWIN", None)
    return found


def states(
    algorithm: str | Twin,
    problem: StackedProblem,
    graph: Topology,
    weights: Weights,
    strategy_name: str,
    *,
    laziness: float,
    lr: StepSize,
    iterations: int,
    local_steps: int = 1,
    wire: str = "full",
    **settings: Any,
) -> Iterator[State]:
    """Every state of a run, the start included.

    algorithm   its name, or a twin of one's own
    graph       or a schedule, of which the twin gets a list: W of every exchange until they repeat
    lr          alpha, or a function of the iteration
    settings    the algorithm's hyperparameters
    """
    twin = named(algorithm) if isinstance(algorithm, str) else algorithm
    if twin is None:
        raise ValueError(f"algorithm={algorithm}: no twin, dgt/reference/{algorithm}.py with TWIN")
    chosen = strategy(strategy_name, weights)
    W: Mixing
    if isinstance(graph, Schedule):
        W = changing.matrices(graph, chosen.mixing_weights, laziness)
    else:
        W = mixing_matrix(graph, chosen.mixing_weights, laziness)
    return twin(problem, W, chosen, lr, iterations, wire=wire, local_steps=local_steps, **settings)
