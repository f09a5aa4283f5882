"""Least squares to be predicted and to be run, and random networks to do that on."""

from __future__ import annotations

import numpy as np

from dgt.network.systems.base import Quadratic
from dgt.network.weights import Weights
from dgt.problems.least_squares import LeastSquares, LeastSquaresSettings


def drawn(nodes: int, noise: float, seeds: range, dimension: int = 4) -> tuple[LeastSquares, Quadratic]:
    problem = LeastSquares(LeastSquaresSettings(noise=noise, dimension=dimension), seeds, range(nodes))
    curvature = (problem.curvature + problem.config.regularization)[..., 0]
    return problem, Quadratic(curvature, problem.curvature * problem.center, problem.start, noise)


def weighted_gradients(quadratic: Quadratic, node_weights: Weights, theta: np.ndarray) -> np.ndarray:
    gradients = quadratic.curvature[..., None] * theta - quadratic.pull
    return np.linalg.norm(np.tensordot(node_weights / node_weights.size, gradients, 1), axis=-1)


class Noisy:
    """One problem in many copies, which differ in their noise only."""

    def __init__(self, quadratic: Quadratic, copies: int) -> None:
        self.quadratic, self.random = quadratic, np.random.default_rng(5)
        self.start = np.repeat(quadratic.start, copies, axis=1)

    def gradient(self, theta: np.ndarray, iteration: int) -> np.ndarray:
        exact = self.quadratic.curvature[..., None] * theta - self.quadratic.pull
        return exact + self.quadratic.noise * self.random.standard_normal(theta.shape)

    def measure(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        return {}


FAMILIES = {
    "lognormal": lambda n, spread, random: np.exp(spread * random.standard_normal(n)),
    "hub": lambda n, spread, random: np.where(np.arange(n) == random.integers(n), 1 + 10 * spread, 1.0),
    "halves": lambda n, spread, random: np.where(random.random(n) < 0.5, 1 + 4 * spread, 1.0),
    "nearly equal": lambda n, spread, random: 1 + 0.05 * spread * random.random(n),
}
TOPOLOGIES = ("ring", "grid", "torus", "exponential", "erdos_renyi", "complete", "star", "tailored")
