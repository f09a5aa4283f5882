"""The twin of gradient tracking, straight from the equations: no flat buffers, no messages, no overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dgt.network.mixing import Strategy
from dgt.reference.stacked import StackedProblem, State, StepSize, at, column
from dgt.reference.wire import Compressed, Plain


def gradient_tracking(
    problem: StackedProblem,
    W: scipy.sparse.csr_array,
    plan: Strategy,
    lr: StepSize,
    iterations: int,
    local_steps: int = 1,
    wire: str = "full",
    overflows: Callable[[int], npt.NDArray[np.bool_]] | None = None,
) -> Iterator[State]:
    """Theta' = W (Theta - alpha_t Y),  Y' = W Y + G (g' - g),  Y_0 = G g_0; W = I on local steps.

    Nodes whose gradient overflows at step t stay out of it: g' is what makes Y' = 0 there.
    """
    theta, G = problem.start, column(plan.gradient_scale, problem.start)
    mix_theta, mix_tracker = (Plain(W), Plain(W)) if wire == "full" else (Compressed(W, wire), Compressed(W, wire))
    yield State(0, theta)
    gradient = problem.gradient(theta, 0)
    if overflows is not None:
        gradient = np.where(column(overflows(0), gradient), 0.0, gradient)
    tracker = G * gradient
    for t in range(iterations):
        exchanges = (t + 1) % local_steps == 0
        theta = theta - at(lr, t) * tracker
        theta = mix_theta(theta) if exchanges else theta
        yield State(t + 1, theta, tracker, gradient)
        if t + 1 < iterations:
            following = problem.gradient(theta, t + 1)
            mixed = mix_tracker(tracker) if exchanges else tracker
            if overflows is not None:
                following = np.where(column(overflows(t + 1), mixed), gradient - mixed / G, following)
            tracker = mixed + G * (following - gradient)
            gradient = following
