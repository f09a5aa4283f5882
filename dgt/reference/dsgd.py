"""The twin of decentralized SGD."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dgt.network.mixing import Strategy
from dgt.reference import bases
from dgt.reference.bases import Momentum
from dgt.reference.stacked import StackedProblem, State, StepSize, at, column
from dgt.reference.wire import Mixing, Wire, exchanges, mixing


def dsgd(
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
) -> Iterator[State]:
    """Theta' = W (Theta - alpha_t G g); W = I on local steps. With momentum g is u' = b u + g; a base makes P(G g)."""
    theta, G = problem.start, column(strategy.gradient_scale, problem.start)
    mix_z = mixing(W, wire)
    with_momentum, descend = Momentum(momentum, nesterov), bases.base(base or "sgd", base_options)
    yield State(0, theta)
    for t in range(iterations):
        z = descend(theta, G * with_momentum(problem.gradient(theta, t)), at(lr, t))
        theta = mix_z(z) if exchanges(t, local_steps) else z
        yield State(t + 1, theta)


TWIN = dsgd
