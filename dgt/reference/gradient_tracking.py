"""The twin of gradient tracking, straight from the equations: no flat buffers, no messages, no overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dgt.network.mixing import Strategy
from dgt.reference import bases
from dgt.reference.bases import Momentum
from dgt.reference.stacked import Array, StackedProblem, State, StepSize, at, column
from dgt.reference.wire import Mixing, Wire, exchanges, mixing


def gradient_tracking(
    problem: StackedProblem,
    W: Mixing,
    strategy: Strategy,
    lr: StepSize,
    iterations: int,
    *,
    wire: str | Wire = "full",
    local_steps: int = 1,
    momentum: float = 0.0,
    nesterov: bool = False,
    base: str | None = None,
    base_options: Mapping[str, Any] | None = None,
    base_form: str = "mixed",
    overflows: Callable[[int], npt.NDArray[np.bool_]] | None = None,
    makes: Callable[[int], npt.NDArray[np.bool_]] | None = None,
) -> Iterator[State]:
    """Theta' = W (Theta - alpha_t Y),  Y' = W Y + G (g' - g),  Y_0 = G g_0; W = I on local steps.

    On a schedule W is W_t of the exchange. With momentum g is u' = b u + g. With a base P, by base_form: mixed
    Theta' = W (Theta - alpha_t P(W Y)), together Theta' = W Theta - alpha_t P(W Y), own W (Theta - alpha_t P(Y)),
    predicted W (Theta - alpha_t P(Y; S)) with second moments of S = W Y_before + W_ii G (g' - g).

    Nodes whose gradient overflows at step t stay out of it: g' is what makes Y' = 0 there. Which nodes make the local
    step t, `makes` says: of the others theta, Y and g stay (without momentum).
    """
    theta, G = problem.start, column(strategy.gradient_scale, problem.start)
    mix_theta, mix_tracker = mixing(W, wire), mixing(W, wire, "tracker")
    with_momentum, descend = Momentum(momentum, nesterov), bases.base(base or "sgd", base_options)
    form = base_form if base is not None else ""
    own_shares = [column(each.diagonal(), problem.start) for each in (W if isinstance(W, list) else [W])]
    yield State(0, theta)
    gradient = with_momentum(problem.gradient(theta, 0))
    if overflows is not None:
        gradient = np.where(column(overflows(0), gradient), 0.0, gradient)
    tracker = G * gradient
    before = 0 * tracker
    for t in range(iterations):
        staying = theta
        mixed = mix_tracker(tracker) if exchanges(t, local_steps) else tracker
        mix = mix_theta if exchanges(t, local_steps) else unmixed
        second = None
        if form == "predicted" and exchanges(t, local_steps):
            second = before + own_shares[t // local_steps % len(own_shares)] * (tracker - before)
        if form == "together":
            theta = descend(mix(theta), mixed, at(lr, t))
        else:
            theta = mix(descend(theta, mixed if form == "mixed" else tracker, at(lr, t), second))
        if makes is not None:
            theta = np.where(column(makes(t), theta), theta, staying)
        before = mixed
        yield State(t + 1, theta, tracker, gradient)
        if t + 1 < iterations:
            following = with_momentum(problem.gradient(theta, t + 1))
            if overflows is not None:
                following = np.where(column(overflows(t + 1), mixed), gradient - mixed / G, following)
            if makes is not None:
                following = np.where(column(makes(t + 1), following), following, gradient)
            tracker = mixed + G * (following - gradient)
            gradient = following


def unmixed(values: Array) -> Array:
    return values


TWIN = gradient_tracking
