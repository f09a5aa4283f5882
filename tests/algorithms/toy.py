"""An algorithm from outside the package, with a hyperparameter, a state of its own and a twin: exact diffusion.

    h = theta - alpha (G u + c)          u = b u + g          theta' = W h          c' = c + (h - theta') / (alpha H)

H local steps between two exchanges, of which h and u are repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dgt import reference
from dgt.algorithms import Message, NeighbourOptimizer, Views
from dgt.config.settings import setting
from dgt.exchange.streams import Stream
from dgt.reference.stacked import at as step_size
from dgt.reference.stacked import column
from dgt.reference.wire import exchanges, mixing


def twin(
    problem: Any, W: Any, strategy: Any, lr: Any, iterations: int, *, wire: str = "full", local_steps: int = 1,
    momentum: float = 0.0,
) -> Iterator[reference.State]:  # fmt: skip
    theta, G = problem.start, column(strategy.gradient_scale, problem.start)
    u, c, mix_h = np.zeros_like(theta), np.zeros_like(theta), mixing(W, wire)
    yield reference.State(0, theta)
    for t in range(iterations):
        u = momentum * u + problem.gradient(theta, t)
        alpha = step_size(lr, t)
        h = theta - alpha * (G * u + c)
        theta = mix_h(h) if exchanges(t, local_steps) else h
        c = c + (h - theta) / (alpha * local_steps)
        yield reference.State(t + 1, theta)


class Toy(NeighbourOptimizer):
    @dataclass(slots=True, kw_only=True)
    class Settings:
        momentum: float = setting(0.0, "share of u that is kept", low=0, high=1, open_high=True)

    messages = (Message("h", "parameters"),)
    state_vectors = {"u": "u", "c": "c"}  # noqa: RUF012
    twin = staticmethod(twin)

    def _direction(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        at.u.mul_(group["momentum"]).add_(gradient)
        return at.u * self.network.gradient_scale + at.c

    def compute_messages(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        torch.sub(at.theta, self._direction(at, gradient, group), alpha=float(group["lr"]), out=at.h)

    def receive(self, message: str, stream: Stream, at: Views) -> None:
        stream.mix(at.theta)
        for group, part in self.groups_in(at):
            change = at.h[part] - at.theta[part]
            at.c[part].add_(change, alpha=1 / (float(group["lr"]) * self.local_steps))

    def local_step(self, at: Views, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        direction = self._direction(at, gradient, group)
        at.theta.sub_(direction, alpha=float(group["lr"]))
        return direction
