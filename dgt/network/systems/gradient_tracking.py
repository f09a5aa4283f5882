"""Gradient tracking as a linear system, on graphs and schedules, with momentum and local steps.

With u_t = y_t - c sigma G xi_t in place of the tracker, x_t = (theta_t - theta*, u_t, m_{t-1} - m*), and without
momentum

    M = [W, -a W; G H (W - I), W - a G H W]          N = sigma [-a W G; (W - I) G - a G H W G]

The tracking invariant makes the weighted gradient 1/n sum_i lambda_i grad F_i(theta_i) = pi^T u_t. With r = (p, s, m):

    p' = W^T (p + c G H s) - c G H s + H (e G s + m),   s' = W^T (s - a (p + c G H s)),   m' = b m - e (1 - b) G s
    N^T r / sigma = c G (s' - s) + e G s + m

W is W_t, or I on local steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgt.network.systems.base import Array, Quadratic, System, Vectors
from dgt.network.weights import Weights


@dataclass(frozen=True, slots=True)
class GradientTracking(System):
    @property
    def parts(self) -> int:
        return 3

    @property
    def rate_parts(self) -> int:
        return 3 if self.momentum else 2

    def back(self, r: Vectors, curvature: Array, lr: float | Array, step: int) -> tuple[Vectors, Array]:
        p, s, m = r
        c, e = self.of_direction
        G = self.plan.gradient_scale[:, None]
        pulled = c * G * curvature * s
        direction = p + pulled
        mixed = self.mixing.back(step, np.concatenate([direction, s - lr * direction], axis=1))
        columns = p.shape[1]
        p, s_before, s = mixed[:, :columns] - pulled, s, mixed[:, columns:]
        gain = c * G * (s - s_before)
        if self.momentum:
            p = p + curvature * (e * G * s_before + m)
            gain = gain + e * G * s_before + m
            m = self.momentum * m - e * (1 - self.momentum) * G * s_before
        return (p, s, m), gain

    def start(self, quadratic: Quadratic, weights: Weights, lr: float) -> Vectors:
        """y_0 = G d_0, m_{-1} = 0."""
        c, _ = self.of_direction
        tracked = c * self.plan.gradient_scale[:, None, None] * quadratic.gradient(quadratic.start)
        theta = quadratic.start - quadratic.optimum(weights)
        return theta, tracked, -self.settled_direction(quadratic, weights)

    def invariant(self, curvature: Array, lr: float | Array) -> tuple[Vectors, Vectors] | None:
        """l = (-c G H pi, pi, -e G pi), v = (1, 0, 0)."""
        pi = np.repeat(self.plan.average_weights[:, None], curvature.shape[1], axis=1)
        c, e = self.of_direction
        G, nothing = self.plan.gradient_scale[:, None], np.zeros_like(pi)
        return (-c * G * curvature * pi, pi, -e * G * pi), (np.ones_like(pi), nothing, nothing)


SYSTEM = GradientTracking
