"""The twin of decentralized SGD."""

from __future__ import annotations

from collections.abc import Iterator

import scipy.sparse

from dgt.network.mixing import Strategy
from dgt.reference.stacked import StackedProblem, State, StepSize, at, column, mix


def dsgd(
    problem: StackedProblem, W: scipy.sparse.csr_array, plan: Strategy, lr: StepSize, iterations: int
) -> Iterator[State]:
    """Theta' = W (Theta - alpha G g)."""
    theta, G = problem.start, column(plan.gradient_scale, problem.start)
    yield State(0, theta)
    for t in range(iterations):
        theta = mix(W, theta - at(lr, t) * G * problem.gradient(theta, t))
        yield State(t + 1, theta)
