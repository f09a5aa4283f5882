"""The twin of decentralized SGD."""

from __future__ import annotations

from collections.abc import Iterator

import scipy.sparse

from dgt.network.mixing import Strategy
from dgt.reference.stacked import StackedProblem, State, StepSize, at, column
from dgt.reference.wire import exchanges, mixing


def dsgd(
    problem: StackedProblem,
    W: scipy.sparse.csr_array,
    strategy: Strategy,
    lr: StepSize,
    iterations: int,
    *,
    wire: str = "full",
    local_steps: int = 1,
) -> Iterator[State]:
    """Theta' = W (Theta - alpha_t G g); W = I on local steps."""
    theta, G = problem.start, column(strategy.gradient_scale, problem.start)
    mix_z = mixing(W, wire)
    yield State(0, theta)
    for t in range(iterations):
        z = theta - at(lr, t) * G * problem.gradient(theta, t)
        theta = mix_z(z) if exchanges(t, local_steps) else z
        yield State(t + 1, theta)


TWIN = dsgd
