"""The twin of exact diffusion, in its own form and in that of EXTRA, straight from the equations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dgt.network.mixing import Strategy
from dgt.reference.bases import Momentum
from dgt.reference.stacked import Array, StackedProblem, State, StepSize, at, column
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
    """H = Theta - alpha (G u + C),  Theta' = W H,  C' = C + (H - W H) / (alpha H_local),  C_0 = 0.

    form=extra: Theta' = W M - alpha (G u + C),  C' = C + (M - W M) / (2 alpha H_local), where M is Theta as it was
    after the exchange before; at the first one nothing is mixed. On local steps Theta' = Theta - alpha (G u + C).

    u is g, or what momentum makes of it. Nodes whose gradient overflows at step t do not descend, but mix.
    """
    theta, G = problem.start, column(strategy.gradient_scale, problem.start)
    mix, with_momentum = mixing(W, wire), Momentum(momentum, nesterov)
    correction, difference = 0 * theta, 0 * theta
    yield State(0, theta)
    for t in range(iterations):
        alpha = at(lr, t)
        descent = alpha * (G * with_momentum(problem.gradient(theta, t)) + correction)
        if overflows is not None:
            descent = np.where(column(overflows(t), descent), 0.0, descent)
        theta = theta - descent
        if exchanges(t, local_steps):
            if form == "extra":
                theta = theta - difference
                correction = correction + _quotient(difference, 2 * alpha * local_steps)
                difference = theta - mix(theta)
            else:
                difference = theta - mix(theta)
                theta = theta - difference
                correction = correction + _quotient(difference, alpha * local_steps)
        yield State(t + 1, theta, correction=correction)


def _quotient(values: Array, by: float | Array) -> Array:
    """values / by; 0 where a schedule has alpha = 0, and a step is nothing but mixing."""
    return np.divide(values, by, out=np.zeros_like(values), where=np.broadcast_to(by, values.shape) != 0)


TWIN = exact_diffusion
