"""Bounds of the paper, as numbers."""

from __future__ import annotations

import math

import networkx as nx

from dgt.network.mixing import strategy
from dgt.network.spectral import spectral_gap
from dgt.network.weights import Weights


def largest_step(graph: nx.Graph, weights: Weights, name: str, laziness: float, smoothness: float) -> float:
    """alpha <= 1/(9 beta max_i G_ii) sqrt(3 (1 - rho) / (2 - rho)): up to here consensus is proved to hold.

    rho is the second largest modulus of W's eigenvalues, so 1 - rho is the spectral gap of the strategy's own W.
    """
    plan = strategy(name, weights)
    gap = spectral_gap(graph, plan.mixing_weights, laziness)
    return math.sqrt(3 * gap / (1 + gap)) / (9 * smoothness * float(plan.gradient_scale.max()))
