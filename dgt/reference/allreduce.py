"""The twin of centralised weighted SGD."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dgt.network.mixing import Strategy
from dgt.network.weights import Weights
from dgt.reference.stacked import StackedProblem, State, StepSize, at, column, weighted_sum


def allreduce(
    problem: StackedProblem, weights: Weights, plan: Strategy, lr: StepSize, iterations: int
) -> Iterator[State]:
    """theta' = theta - alpha 1/n sum_i lambda_i g_i from the strategy's average of the starts."""
    everywhere = np.ones_like(column(weights, problem.start))
    theta = everywhere * weighted_sum(plan.average_weights, problem.start)
    yield State(0, theta)
    for t in range(iterations):
        theta = theta - at(lr, t) * weighted_sum(weights / weights.size, problem.gradient(theta, t))
        yield State(t + 1, theta)
