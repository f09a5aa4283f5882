"""Decentralized SGD as a linear system, on graphs and schedules, with momentum and local steps.

    theta' = W (theta - a G d)

It does not settle at the optimum: nodes go on descending by d* = m* there. That is a part of x which stays as it is,
x = (theta - theta*, m_{t-1} - m*, m*). Backwards, r = (p, m, o) and f = W^T p give

    p' = f - c a G H f + H m          m' = b m - e a G f          o' = o - a G f          N^T r / sigma = m - c a G f
"""

from __future__ import annotations

from dataclasses import dataclass

from dgt.network.systems.base import Array, Quadratic, System, Vectors
from dgt.network.weights import Weights


@dataclass(frozen=True, slots=True)
class DSGD(System):
    is_exact = False

    @property
    def parts(self) -> int:
        return 3

    @property
    def rate_parts(self) -> int:
        return 2 if self.momentum else 1

    def back(self, r: Vectors, curvature: Array, lr: float | Array, step: int) -> tuple[Vectors, Array]:
        p, m, o = r
        c, e = self.of_direction
        f = self.mixing.back(step, p)
        descent = lr * self.plan.gradient_scale[:, None] * f
        gain = m - c * descent
        return (f + curvature * gain, self.momentum * m - e * descent, o - descent), gain

    def start(self, quadratic: Quadratic, weights: Weights, lr: float) -> Vectors:
        """m_{-1} = 0."""
        settled = self.settled_direction(quadratic, weights)
        return quadratic.start - quadratic.optimum(weights), -settled, settled


SYSTEM = DSGD
