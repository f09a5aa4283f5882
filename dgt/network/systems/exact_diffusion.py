"""Exact diffusion as a linear system, in its own form and in that of EXTRA, with momentum and local steps.

At a constant step k = a c is what the algorithm keeps, and at the optimum k* = -a G m*. x = (theta - theta*, k - k*,
m_{t-1} - m*), and with q = theta - a G d - k

    theta' = W q          k' = k + (I - W) q / H          m' = b m + g

Backwards, r = (p, s, m) and f = W^T p + (I - W^T) s / H give

    p' = f - c a G H f + H m          s' = s - f          m' = b m - e a G f          N^T r / sigma = m - c a G f

and f = p on local steps. EXTRA keeps D = theta - W theta of the parameters after the exchange before, too:

    theta' = q - D          k' = k + D / 2H          D' = (I - W) theta'          r = (p, s, w, m)

with f = p + (I - W^T) w and w' = s / 2H - f; on local steps f = p and w' = w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgt.network.systems.base import Array, Quadratic, System, Vectors
from dgt.network.weights import Weights


@dataclass(frozen=True, slots=True)
class ExactDiffusion(System):
    @classmethod
    def chosen(cls, settings: Mapping[str, Any]) -> type[System]:
        """By `form`, diffusion or extra."""
        return Extra if settings.get("form") == "extra" else cls

    @property
    def parts(self) -> int:
        return 3

    @property
    def rate_parts(self) -> int:
        return 3 if self.momentum else 2

    def back(self, r: Vectors, curvature: Array, lr: float | Array, step: int) -> tuple[Vectors, Array]:
        p, s, m = r
        share = s / self.mixing.local_steps
        f = share + self.mixing.back(step, p - share) if self.mixing.exchanges(step) else p
        p, m, gain = self._before_descent(f, m, curvature, lr)
        return (p, s - f, m), gain

    def _before_descent(self, f: Array, m: Array, curvature: Array, lr: float | Array) -> tuple[Array, Array, Array]:
        """p', m' and N^T r / sigma of what descends by a G d."""
        c, e = self.of_direction
        step = lr * self.plan.gradient_scale[:, None] * f
        gain = m - c * step
        return f + curvature * gain, self.momentum * m - e * step, gain

    def start(self, quadratic: Quadratic, weights: Weights, lr: float) -> Vectors:
        """k_0 = 0, m_{-1} = 0."""
        settled = self.settled_direction(quadratic, weights)
        theta = quadratic.start - quadratic.optimum(weights)
        return theta, lr * self.plan.gradient_scale[:, None, None] * settled, -settled

    def invariant(self, curvature: Array, lr: float | Array) -> tuple[Vectors, Vectors] | None:
        """l = (0, pi, 0), v = (1, -a G H 1 / (1 - b), H 1 / (1 - b))."""
        pi = np.repeat(self.plan.average_weights[:, None], curvature.shape[1], axis=1)
        settled = curvature / (1 - self.momentum)
        nothing = np.zeros_like(pi)
        return (nothing, pi, nothing), (np.ones_like(pi), -lr * self.plan.gradient_scale[:, None] * settled, settled)


@dataclass(frozen=True, slots=True)
class Extra(ExactDiffusion):
    """Its EXTRA form, whose message leaves before the gradient is known."""

    @property
    def parts(self) -> int:
        return 4

    @property
    def rate_parts(self) -> int:
        return 4 if self.momentum else 3

    def back(self, r: Vectors, curvature: Array, lr: float | Array, step: int) -> tuple[Vectors, Array]:
        p, s, w, m = r
        f = p
        if self.mixing.exchanges(step):
            f = p + w - self.mixing.back(step, w)
            w = s / (2 * self.mixing.local_steps) - f
        p, m, gain = self._before_descent(f, m, curvature, lr)
        return (p, s - f, w, m), gain

    def start(self, quadratic: Quadratic, weights: Weights, lr: float) -> Vectors:
        """D_0 = 0."""
        theta, kept, m = ExactDiffusion.start(self, quadratic, weights, lr)
        return theta, kept, np.zeros_like(theta), m

    def invariant(self, curvature: Array, lr: float | Array) -> tuple[Vectors, Vectors] | None:
        """l = (0, pi, pi / 2H, 0), v as above with 0 for D."""
        found = ExactDiffusion.invariant(self, curvature, lr)
        assert found is not None
        (nothing, pi, _), (theta, kept, m) = found
        return (nothing, pi, pi / (2 * self.mixing.local_steps), nothing), (theta, kept, nothing, m)


SYSTEM = ExactDiffusion
