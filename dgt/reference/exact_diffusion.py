"""The twin of exact diffusion, in its own form and in that of EXTRA, straight from the equations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dgt.network.mixing import Strategy
from dgt.reference.bases import Momentum
from dgt.reference.stacked import StackedProblem, State, StepSize, at, column
from dgt.reference.wire import exchanges, mixing


def exact_diffusion(
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
    base: None = None,
    base_options: None = None,
    form: str = "diffusion",
    overflows: Callable[[int], npt.NDArray[np.bool_]] | None = None,
) -> Iterator[State]:
    """H = Theta - alpha (G u + D / beta),  Theta' = W H,  D' = D + (H - W H) / local steps,  D_0 = 0.

    beta is the largest alpha so far, and C = D / beta. form=extra: Theta' = W M - alpha (G u + D / beta),
    D' = D + (M - W M) / 2 / local steps, where M is Theta as it was after the exchange before; at the first one nothing
    is mixed. On local steps Theta' = Theta - alpha (G u + D / beta).

    u is g, or what momentum makes of it. Nodes whose gradient overflows at step t do not descend, but mix.
    """
    theta, G = problem.start, column(strategy.gradient_scale, problem.start)
    mix, with_momentum = mixing(W, wire), Momentum(momentum, nesterov)
    kept, difference, beta = 0 * theta, 0 * theta, np.zeros(1)
    yield State(0, theta)
    for t in range(iterations):
        alpha = np.asarray(at(lr, t))
        beta = np.maximum(beta, alpha)
        correction = kept / np.where(beta == 0, 1.0, beta)
        descent = alpha * (G * with_momentum(problem.gradient(theta, t)) + correction)
        if overflows is not None:
            descent = np.where(column(overflows(t), descent), 0.0, descent)
        theta = theta - descent
        if exchanges(t, local_steps):
            if form == "extra":
                theta = theta - difference
                kept = kept + difference / (2 * local_steps)
                difference = theta - mix(theta)
            else:
                difference = theta - mix(theta)
                theta = theta - difference
                kept = kept + difference / local_steps
        yield State(t + 1, theta, correction=kept / np.where(beta == 0, 1.0, beta))


TWIN = exact_diffusion
