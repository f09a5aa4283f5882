from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dgt.algorithms import Message, NeighbourOptimizer, Views
from dgt.config.settings import setting
from dgt.reference.stacked import State, StepSize, at, column


def heavy_ball(
    problem: Any, W: Any, strategy: Any, lr: StepSize, iterations: int, *, beta: float, **machinery: Any
) -> Iterator[State]:
    """The same in one process: theta is [nodes, seeds, dimension], W the whole mixing matrix."""
    theta, G = problem.start, column(strategy.gradient_scale, problem.start)
    m = 0 * theta
    yield State(0, theta)
    for t in range(iterations):
        m = beta * m + G * problem.gradient(theta, t)
        z = theta - at(lr, t) * m
        theta = (W @ z.reshape(len(z), -1)).reshape(z.shape)
        yield State(t + 1, theta)


class HeavyBall(NeighbourOptimizer):
    """Decentralized SGD with momentum: m' = beta m + G g, theta' = W (theta - alpha m')."""

    @dataclass(slots=True, kw_only=True)
    class Settings:
        beta: float = setting(0.9, "share of the last direction that is kept", low=0, high=1, open_high=True)

    messages = (Message("z", "parameters"),)  # what neighbours are sent
    state_vectors = {"m": "momentum"}  # noqa: RUF012  zero at first, kept between steps and in checkpoints
    supports = frozenset({"bucket_mb"})
    twin = staticmethod(heavy_ball)

    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        at.m.mul_(group["beta"]).add_(gradient, alpha=self.network.gradient_scale)
        torch.add(at.theta, at.m, alpha=-float(group["lr"]), out=at.z)
