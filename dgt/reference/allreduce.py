"""The twin of centralised weighted SGD."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse

from dgt.network.mixing import Strategy
from dgt.reference import bases
from dgt.reference.bases import Momentum
from dgt.reference.stacked import StackedProblem, State, StepSize, at, column, weighted_sum


def allreduce(
    problem: StackedProblem,
    W: scipy.sparse.csr_array,
    strategy: Strategy,
    lr: StepSize,
    iterations: int,
    *,
    wire: str = "full",
    local_steps: int = 1,
    momentum: float = 0.0,
    nesterov: bool = False,
    base: str | None = None,
    base_options: Mapping[str, Any] | None = None,
) -> Iterator[State]:
    """theta' = theta - alpha 1/n sum_i lambda_i g_i from the strategy's average of the starts; without W.

    With momentum, or a base, that is done with the sum.
    """
    weights = strategy.mixing_weights * strategy.gradient_scale  # lambda, in one of them
    everywhere = np.ones_like(column(weights, problem.start))
    theta = everywhere * weighted_sum(strategy.average_weights, problem.start)
    with_momentum, descend = Momentum(momentum, nesterov), bases.base(base or "sgd", base_options)
    yield State(0, theta)
    for t in range(iterations):
        mean = everywhere * weighted_sum(weights / weights.size, problem.gradient(theta, t))
        theta = descend(theta, with_momentum(mean), at(lr, t))
        yield State(t + 1, theta)


TWIN = allreduce
