"""What the linear systems share: the quadratic they descend, the mixing of every step, and their interface."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dgt.network import changing
from dgt.network.mixing import Strategy, mixing_matrix, strategy
from dgt.network.schedules import Schedule, Topology
from dgt.network.weights import Weights

Array: TypeAlias = npt.NDArray[np.float64]
Vectors: TypeAlias = tuple[Array, ...]
"""A vector by its parts, theta first; each [nodes, columns]."""


@dataclass(frozen=True, slots=True)
class Quadratic:
    """F_i(theta) = 1/2 h_i |theta|^2 - b_i^T theta, drawn several times."""

    curvature: Array  # [nodes, draws], h_i
    pull: Array  # [nodes, draws, dimension], b_i
    start: Array  # [nodes, draws, dimension]
    noise: float

    def first(self, draws: int) -> Quadratic:
        """Some of the draws."""
        return Quadratic(self.curvature[:, :draws], self.pull[:, :draws], self.start[:, :draws], self.noise)

    def optimum(self, weights: Weights) -> Array:
        """theta* = sum lambda_i b_i / sum lambda_i h_i, [draws, dimension]."""
        return np.tensordot(weights, self.pull, 1) / (weights @ self.curvature)[:, None]

    def gradient(self, theta: Array) -> Array:
        """h_i theta - b_i, [nodes, draws, dimension]."""
        return self.curvature[..., None] * theta - self.pull


@dataclass(frozen=True, slots=True)
class Mixing:
    """W_t of every step: those of the exchanges in turn, and I on local steps."""

    W: list[scipy.sparse.csr_array]
    backwards: list[scipy.sparse.csr_array]  # W^T
    local_steps: int = 1

    @classmethod
    def of(cls, topology: Topology, mixing_weights: Weights, laziness: float, local_steps: int = 1) -> Mixing:
        if isinstance(topology, Schedule):
            W = changing.matrices(topology, mixing_weights, laziness)
        else:
            W = [mixing_matrix(topology, mixing_weights, laziness)]
        return cls(W, [each.T.tocsr() for each in W], local_steps)

    @property
    def period(self) -> int:
        """Steps after which it repeats."""
        return len(self.W) * self.local_steps

    def exchanges(self, step: int) -> bool:
        """Whether this step ends with an exchange."""
        return (step + 1) % self.local_steps == 0

    def back(self, step: int, values: Array) -> Array:
        """W_t^T values."""
        if not self.exchanges(step):
            return values
        mixed: Array = self.backwards[step // self.local_steps % len(self.W)] @ values
        return mixed


@dataclass(frozen=True, slots=True)
class System(abc.ABC):
    """One algorithm with one strategy on one network: all that M_t is made of but the curvatures and the step alpha.

    Momentum b descends by d_t = c g_t + e m_{t-1} in place of g_t, with m_t = b m_{t-1} + g_t and (c, e) = (1, b), or
    with Nesterov (1 + b, b^2).
    """

    is_exact: ClassVar[bool] = True
    """Whether it settles at the optimum, without noise."""

    plan: Strategy
    mixing: Mixing
    momentum: float = 0.0
    nesterov: bool = False

    @classmethod
    def of(
        cls,
        topology: Topology,
        weights: Weights,
        name: str,
        laziness: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        local_steps: int = 1,
        **settings: Any,
    ) -> System:
        """The system of a strategy on a graph or schedule; `settings` are the algorithm's own."""
        plan = strategy(name, weights)
        mixing = Mixing.of(topology, plan.mixing_weights, laziness, local_steps)
        return cls.chosen(settings)(plan, mixing, momentum, nesterov)

    @classmethod
    def chosen(cls, settings: Mapping[str, Any]) -> type[System]:
        """The class for these settings of the algorithm."""
        return cls

    @property
    def W(self) -> scipy.sparse.csr_array:
        """Of the first exchange."""
        return self.mixing.W[0]

    @property
    def of_direction(self) -> tuple[float, float]:
        """(c, e) of d_t = c g_t + e m_{t-1}."""
        b = self.momentum
        return (1 + b, b * b) if self.nesterov else (1.0, b)

    @property
    @abc.abstractmethod
    def parts(self) -> int:
        """How many vectors x is made of, each as long as theta."""

    @property
    @abc.abstractmethod
    def rate_parts(self) -> int:
        """How many of them, from the first on, decide whether it converges."""

    @abc.abstractmethod
    def back(self, r: Vectors, curvature: Array, lr: float | Array, step: int) -> tuple[Vectors, Array]:
        """r' = M_t^T r and N_t^T r / sigma of step t, one column per draw; `lr` may have one entry per column."""

    @abc.abstractmethod
    def start(self, quadratic: Quadratic, weights: Weights, lr: float) -> Vectors:
        """x_0, each part [nodes, draws, dimension]."""

    def invariant(self, curvature: Array, lr: float | Array) -> tuple[Vectors, Vectors] | None:
        """l and v with l^T M_t = l^T and M_t v = v at every step, where x and the noise have no part of l; if any.

        Of the parts that count, each [nodes, columns].
        """
        return None

    def settled_direction(self, quadratic: Quadratic, weights: Weights) -> Array:
        """d* = m* = grad F_i(theta*) / (1 - b): what momentum makes of the gradients at the optimum."""
        return quadratic.gradient(quadratic.optimum(weights)) / (1 - self.momentum)
