"""The twin of centralised weighted SGD."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse

from dgt.network.mixing import Strategy
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
) -> Iterator[State]:
    """theta' = theta - alpha 1/n sum_i lambda_i g_i from the strategy's average of the starts; without W."""
    weights = strategy.mixing_weights * strategy.gradient_scale  # lambda, in one of them
    everywhere = np.ones_like(column(weights, problem.start))
    theta = everywhere * weighted_sum(strategy.average_weights, problem.start)
    yield State(0, theta)
    for t in range(iterations):
        theta = theta - at(lr, t) * weighted_sum(weights / weights.size, problem.gradient(theta, t))
        yield State(t + 1, theta)


TWIN = allreduce
