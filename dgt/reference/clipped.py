"""A stacked problem whose gradients are clipped: the twin of `clip`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dgt.reference.stacked import Array, StackedProblem

TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Clipped:
    """g_i <- g_i min(1, most / |g_i|), of every node and seed; as it is where `most` is None."""

    def __init__(self, problem: StackedProblem, most: float | None) -> None:
        self.start, self._problem, self._most = problem.start, problem, most

    def gradient(self, theta: Array, iteration: int) -> Array:
        gradient = self._problem.gradient(theta, iteration)
        if self._most is None:
            return gradient
        norm = np.linalg.norm(gradient, axis=-1, keepdims=True)
        return gradient * np.minimum(self._most / (norm + TINY), 1.0)

    def measure(self, theta: Array) -> Mapping[str, Array]:
        return self._problem.measure(theta)
