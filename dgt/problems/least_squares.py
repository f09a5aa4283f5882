"""The paper's synthetic least-squares problem, in float64, with its closed-form optimum.

    F_i(theta) = 1/2 zeta_i |theta - c_i|^2 + rho/2 |theta|^2
    g_i = zeta_i (theta - c_i) + rho theta + sigma xi_{i,t}

`LeastSquares` is the mathematics for any range of nodes (one on a rank, all in the single-process twin);
`LeastSquaresProblem` is one node of it as a PyTorch model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dgt.config.checks import check_range
from dgt.config.settings import setting
from dgt.network.weights import Weights
from dgt.problems.base import Problem, ProblemContext

Array = npt.NDArray[np.float64]
Sampler = Callable[[int, int, int, range, int], Array]

# One stream of random numbers per use. The paper's seed s0 + 1000 i + 10 t gives nodes i, i+1 the same noise
# 100 iterations apart; here seed, stream, iterations and node are separate words of a counter-based generator.
NOISE, CURVATURE, CENTER, OFFSET, START = range(5)
NOISE_CHUNK = 16  # iterations of noise drawn at a time: setting up a generator costs more than using it
BLOCK = 1024  # nodes drawn at a time: what is computed on the way stays in the cache


@dataclass(slots=True, kw_only=True)
class LeastSquaresSettings:
    dimension: int = setting(10, "d, number of parameters", low=1)
    noise: float = setting(1.0, "sigma, standard deviation of the gradient noise; 0: exact gradients", low=0)
    curvature_min: float = setting(5.5, "lower end of the curvatures zeta_i", low=0, open_low=True)
    curvature_max: float = setting(12.5, "upper end of the curvatures zeta_i")
    offset: float = setting(3.0, "mu_0, distance of the local centers from the shared one", low=0)
    regularization: float = setting(0.01, "rho", low=0)

    def check(self) -> None:
        check_range("problem.curvature_max", self.curvature_max, self.curvature_min)


def uniforms(seed: int, stream: int, chunk: int, nodes: range, count: int) -> Array:
    """[nodes, count] numbers in (0, 1]; every node's are its own, whatever range it is drawn with."""
    blocks = -(-count // 4)  # Philox makes four numbers per counter value
    generator = np.random.Philox(key=seed, counter=[nodes.start * blocks, chunk, stream, 0])
    raw = generator.random_raw(len(nodes) * blocks * 4).reshape(len(nodes), blocks * 4)[:, :count]
    return ((raw >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53


def gaussians(seed: int, stream: int, chunk: int, nodes: range, count: int) -> Array:
    """[nodes, count] standard normal numbers by Box-Muller, which needs a fixed number of uniforms per node."""
    half = -(-count // 2)
    u = uniforms(seed, stream, chunk, nodes, 2 * half)
    radius, angle = np.sqrt(-2 * np.log(u[:, :half])), 2 * np.pi * u[:, half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :count]


def smoothness(config: LeastSquaresSettings) -> float:
    """beta, the largest curvature that any node can have."""
    return config.curvature_max + config.regularization


class LeastSquares:
    """The local problems of `nodes` (a range within 0..n-1) for one or several seeds.

    Arrays are [nodes, seeds, dimension]; curvature is [nodes, seeds, 1].
    """

    def __init__(self, config: LeastSquaresSettings, seeds: Sequence[int], nodes: range) -> None:
        self.config, self.seeds, self.nodes = config, list(seeds), nodes
        spread = config.curvature_max - config.curvature_min
        self.curvature = config.curvature_min + spread * self._draw(uniforms, CURVATURE, 1)
        base = np.stack([gaussians(s, CENTER, 0, range(1), config.dimension) for s in self.seeds], axis=1)
        direction = self._draw(gaussians, OFFSET)
        direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
        self.center = base + config.offset * direction
        self.start = self._draw(gaussians, START)
        self._noise: tuple[int, Array] | None = None

    def _draw(self, sample: Sampler, stream: int, count: int | None = None, chunk: int = 0) -> Array:
        count = self.config.dimension if count is None else count
        drawn = np.empty((len(self.nodes), len(self.seeds), count))
        for first in range(0, len(self.nodes), BLOCK):
            nodes = self.nodes[first : first + BLOCK]
            for k, seed in enumerate(self.seeds):
                drawn[first : first + BLOCK, k] = sample(seed, stream, chunk, nodes, count)
        return drawn

    def noise(self, iteration: int) -> Array:
        """xi_{i,t}, standard normal, from the chunk of iterations it was drawn with."""
        chunk, position = divmod(iteration, NOISE_CHUNK)
        if self._noise is None or self._noise[0] != chunk:
            self._noise = chunk, self._draw(gaussians, NOISE, NOISE_CHUNK * self.config.dimension, chunk)
        first = position * self.config.dimension
        return self._noise[1][..., first : first + self.config.dimension]

    def exact_gradient(self, theta: Array) -> Array:
        """zeta_i (theta - c_i) + rho theta."""
        return self.curvature * (theta - self.center) + self.config.regularization * theta

    def gradient(self, theta: Array, iteration: int) -> Array:
        """The exact gradient plus sigma xi_{i,t}."""
        exact = self.exact_gradient(theta)
        return exact + self.config.noise * self.noise(iteration) if self.config.noise else exact

    def measure(self, theta: Array) -> dict[str, Array]:
        """loss [nodes, seeds] and gradient [nodes, seeds, dimension], both exact."""
        squares = self.curvature[..., 0] * ((theta - self.center) ** 2).sum(-1)
        return {
            "loss": 0.5 * squares + 0.5 * self.config.regularization * (theta**2).sum(-1),
            "gradient": self.exact_gradient(theta),
        }

    def optimum(self, weights: Weights, members: Sequence[int] | None = None) -> Array:
        """theta* = (sum lambda_i zeta_i + n rho)^-1 sum lambda_i zeta_i c_i, [seeds, dimension]; needs all nodes.

        `members`: of these nodes only, whose weights are given.

        The paper prints rho in place of n rho; with sum lambda_i = n only n rho makes the gradient of F vanish.
        """
        chosen = slice(None) if members is None else list(members)
        pull = weights[:, None, None] * self.curvature[chosen]
        return (pull * self.center[chosen]).sum(0) / (pull.sum(0) + weights.size * self.config.regularization)


def summarise(means: Mapping[str, Array], average: Array, optimum: Array) -> dict[str, Array]:
    """loss, |1/n sum lambda_i grad F_i(theta_i)| and |network average - theta*|, each [seeds]."""
    return {
        "loss": means["loss"],
        "grad_norm": np.linalg.norm(means["gradient"], axis=-1),
        "distance": np.linalg.norm(average - optimum, axis=-1),
    }


class LeastSquaresProblem(Problem):
    """One node's least squares as a model with a single parameter [seeds, dimension]."""

    Settings = LeastSquaresSettings
    uses_autograd = False
    usual_dtype = torch.float64  # compared with a closed form, to the last digit
    is_small = True  # ten numbers are not worth a GPU
    is_quadratic = True
    stacks_seeds = True

    @classmethod
    def shard_sizes(cls, settings: LeastSquaresSettings, nodes: int, seed: int) -> list[int]:
        """The rows of A_i, which is square."""
        return [settings.dimension] * nodes

    @classmethod
    def parameter_count(cls, settings: LeastSquaresSettings) -> int:
        return settings.dimension

    def __init__(self, context: ProblemContext, /, **settings: Any) -> None:
        config, node, seeds = LeastSquaresSettings(**settings), context.node, context.seeds or (context.seed,)
        self.local = LeastSquares(config, seeds, range(node, node + 1))
        self._all = LeastSquares(config, seeds, range(context.nodes))
        self.optimum = self._all.optimum(context.weights)
        self.copies = len(seeds)
        self.smoothness = smoothness(config)
        start = torch.from_numpy(self.local.start[0]).to(dtype=context.dtype, device=context.device)
        self.theta = torch.nn.Parameter(start)
        self.model: torch.nn.Module = torch.nn.ParameterDict({"theta": self.theta})

    def go_on_with(self, members: Sequence[int], weights: Weights) -> None:
        self.optimum = self._all.optimum(weights, members)

    def _position(self) -> Array:
        return self.theta.detach().cpu().double().numpy()[None]

    def backward(self, iteration: int) -> None:
        # the gradient is a formula, so autograd has nothing to add but time
        with np.errstate(all="ignore"):  # a diverging run is noticed at its next evaluation, and told once
            gradient = self.local.gradient(self._position(), iteration)[0]
        self.theta.grad = torch.from_numpy(gradient).to(self.theta)

    def measure(self) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return {name: values[0] for name, values in self.local.measure(self._position()).items()}

    def summarise(self, means: Mapping[str, Array], average: Array) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return summarise(means, average, self.optimum)


PROBLEM = LeastSquaresProblem
