"""When is Strategy II proved to be the better one? The paper's conditions on spectrum, edges and degrees.

spectral_condition(graph, weights)      # the one that counts
edge_condition(graph, weights)          # implies it, and needs no eigenvalue
degree_condition(graph, weights)        # the edge condition where degrees are in proportion to the weights

The paper takes a laziness of at least 1/2 here, so that no eigenvalue is negative. Below that the spectral condition is
asked of rho as it is, and the other two speak of sigma_2 alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import networkx as nx
import numpy as np
import scipy.optimize

from dgt.network.mixing import edge_array
from dgt.network.spectral import spectrum
from dgt.network.weights import Weights, uniform

ROUNDING = 1e-12  # conditions that hold with equality, as with uniform weights, hold


@dataclass(frozen=True, slots=True)
class Condition:
    """left >= right, asked of the whole graph or of the edge that is worst off."""

    left: float
    right: float

    @property
    def holds(self) -> bool:
        return self.left >= self.right * (1 - ROUNDING)

    def __bool__(self) -> bool:
        return self.holds


def phi_1(rho: float) -> float:
    """phi_1(rho) = (1 + 3 rho^4) / (1 + rho)^3, so that B(rho) = 2 phi_1(rho) / (1 - rho)^4."""
    return (1 + 3 * rho**4) / (1 + rho) ** 3


RHO_STAR: float = scipy.optimize.brentq(lambda rho: rho**4 + 4 * rho**3 - 1, 0.0, 1.0, xtol=1e-15)
"""Where phi_1 is least: the root of rho^4 + 4 rho^3 - 1, 0.601232. The paper prints 0.605829, which is none."""
ETA = (phi_1(1.0) / phi_1(RHO_STAR)) ** 0.25 - 1
"""eta = (sup phi_1(rho_Lambda) / phi_1(rho_J))^1/4 - 1 over rho_J < rho_Lambda: 0.101979, printed as 0.102."""


def R(weights: Weights) -> float:
    """R = min((1 + eta) lambda_max^-1/2, 1)."""
    return min((1 + ETA) / math.sqrt(float(weights.max())), 1.0)


def spectral_condition(graph: nx.Graph, weights: Weights, laziness: float = 0.3) -> Condition:
    """1 - rho_Lambda >= R (1 - rho_J): Strategy II converges faster."""
    own = spectrum(graph, weights, laziness)
    plain = spectrum(graph, uniform(weights.size), laziness)
    return Condition(own.gap, R(weights) * plain.gap)


def step_condition(graph: nx.Graph, weights: Weights, laziness: float = 0.3) -> Condition:
    """1 - rho_Lambda >= lambda_max^-1/2 (1 - rho_J), said to imply alpha_max^II >= alpha_max^I.

    phi_1 is not monotone, so the implication is exact only with (1 + eta), as in R; compare `theory.step_limit` to be
    sure.
    """
    own = spectrum(graph, weights, laziness)
    plain = spectrum(graph, uniform(weights.size), laziness)
    return Condition(own.gap, plain.gap / math.sqrt(float(weights.max())))


def least_rayleigh_quotient(graph: nx.Graph, weights: Weights) -> float:
    """inf over z orthogonal to sqrt(lambda) of
    sum_{ij in E} min(lambda_i/d_i, lambda_j/d_j) (z_i/sqrt(lambda_i) - z_j/sqrt(lambda_j))^2 / |z|^2.

    It is (1 - sigma_2) / (1 - epsilon), whatever the laziness.
    """
    return (1 - spectrum(graph, weights, 0.5).second) / 0.5


def rayleigh_condition(graph: nx.Graph, weights: Weights) -> Condition:
    """The spectral condition on sigma_2, as one between the two least Rayleigh quotients, lambda and uniform."""
    plain = least_rayleigh_quotient(graph, uniform(weights.size))
    return Condition(least_rayleigh_quotient(graph, weights), R(weights) * plain)


def edge_condition(graph: nx.Graph, weights: Weights) -> Condition:
    """min(lambda_i/d_i, lambda_j/d_j) >= R lambda_max min(1/d_i, 1/d_j) on every edge.

    Enough for `rayleigh_condition`.
    """
    i, j = edge_array(graph).T
    degrees = _degrees(graph)
    share = weights / degrees
    left = np.minimum(share[i], share[j])
    right = R(weights) * float(weights.max()) / np.maximum(degrees[i], degrees[j])
    return _worst(left, right)


def degree_condition(graph: nx.Graph, weights: Weights) -> Condition:
    """max(d_i, d_j) >= R d_max on every edge: the edge condition where d_i is in proportion to lambda_i."""
    i, j = edge_array(graph).T
    degrees = _degrees(graph)
    left = np.maximum(degrees[i], degrees[j])
    return _worst(left, np.full(left.size, R(weights) * float(degrees.max())))


def _degrees(graph: nx.Graph) -> np.ndarray:
    return np.array([graph.degree[i] for i in range(graph.number_of_nodes())], dtype=np.float64)


def _worst(left: np.ndarray, right: np.ndarray) -> Condition:
    """The edge with the least left/right; a graph without edges has nothing to ask."""
    if not left.size:
        return Condition(1.0, 1.0)
    edge = int(np.argmin(left / right))
    return Condition(float(left[edge]), float(right[edge]))
