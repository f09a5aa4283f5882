"""The twin of gradient tracking, straight from the equations: no flat buffers, no messages, no overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dgt.network.mixing import Strategy
from dgt.reference.stacked import StackedProblem, State, StepSize, at, column
from dgt.reference.wire import exchanges, mixing


def gradient_tracking(
    problem: StackedProblem,
    W: scipy.sparse.csr_array,
    strategy: Strategy,
    lr: StepSize,
    iterations: int,
    *,
    wire: str = "full",
    local_steps: int = 1,
    overflows: Callable[[int], npt.NDArray[np.bool_]] | None = None,
) -> Iterator[State]:
    """Theta' = W (Theta - alpha_t Y),  Y' = W Y + G (g' - g),  Y_0 = G g_0; W = I on local steps.

    Nodes whose gradient overflows at step t stay out of it: g' is what makes Y' = 0 there.
    """
    theta, G = problem.start, column(strategy.gradient_scale, problem.start)
    mix_theta, mix_tracker = mixing(W, wire), mixing(W, wire)
    yield State(0, theta)
    gradient = problem.gradient(theta, 0)
    if overflows is not None:
        gradient = np.where(column(overflows(0), gradient), 0.0, gradient)
    tracker = G * gradient
    for t in range(iterations):
        theta = theta - at(lr, t) * tracker
        theta = mix_theta(theta) if exchanges(t, local_steps) else theta
        yield State(t + 1, theta, tracker, gradient)
        if t + 1 < iterations:
            following = problem.gradient(theta, t + 1)
            mixed = mix_tracker(tracker) if exchanges(t, local_steps) else tracker
            if overflows is not None:
                following = np.where(column(overflows(t + 1), mixed), gradient - mixed / G, following)
            tracker = mixed + G * (following - gradient)
            gradient = following


TWIN = gradient_tracking
