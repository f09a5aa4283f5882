"""Mixing weights by Metropolis-Hastings: what a node gives itself and each neighbour.

A node needs only (lambda_j, d_j) of its neighbours: `mixing_row`. The matrix, for analysis and for the
single-process twin, is made of the same rows: `mixing_matrix`. No rank forms it while training.
"""

from __future__ import annotations

import fractions
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy.sparse

from dgt.config import STRATEGIES
from dgt.config.checks import check_choice, check_range
from dgt.errors import ConfigError
from dgt.network.graphs import check as check_graph
from dgt.network.weights import Weights, normalise, uniform

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class MixingRow:
    """Row i of W: the weight of the node itself and of each neighbour, neighbours in ascending order."""

    own: float
    neighbours: dict[int, float]


def mixing_row(
    own_weight: float, own_degree: int, neighbours: Mapping[int, tuple[float, int]], laziness: float
) -> MixingRow:
    """W_ij = (1-eps)/d_i min(1, lambda_j d_i / (lambda_i d_j)) for neighbours j -> (lambda_j, d_j); W_ii is the rest.

    Written as (1-eps) min(lambda_i/d_i, lambda_j/d_j) / lambda_i, whose numerator is the same number on both
    ends of an edge: detailed balance lambda_i W_ij = lambda_j W_ji holds to the last rounding.
    """
    row = {
        j: (1 - laziness) * min(own_weight / own_degree, weight / degree) / own_weight
        for j, (weight, degree) in sorted(neighbours.items())
    }
    return MixingRow(own=1.0 - sum(row.values()), neighbours=row)


def row_without(row: MixingRow, lost: Collection[int]) -> MixingRow:
    """The row after neighbours are lost: their weight goes to the node itself, W_ii' = W_ii + sum_lost W_ij.

    lambda_i W_ij = lambda_j W_ji holds as before for all who are left, so their stationary distribution is lambda
    among themselves, whatever was lost.
    """
    left = {j: weight for j, weight in row.neighbours.items() if j not in lost}
    return MixingRow(own=1.0 - sum(left.values()), neighbours=left)


def mixing_matrix(graph: nx.Graph, weights: Weights, laziness: float = 0.3) -> scipy.sparse.csr_array:
    """W with lambda^T W = lambda^T and W 1 = 1; with lambda = 1 it is doubly stochastic. Sparse, n x n."""
    check_range("laziness", laziness, 0, 1, open_low=True, open_high=True)
    n = graph.number_of_nodes()
    ends = edge_array(graph)
    rows, columns = np.concatenate([ends, ends[:, ::-1]]).T
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    degrees = np.bincount(rows, minlength=n)
    share = weights / np.maximum(degrees, 1)
    values = (1 - laziness) * np.minimum(share[rows], share[columns]) / weights[rows]  # as in `mixing_row`
    each, first = values.tolist(), np.concatenate([[0], np.cumsum(degrees)]).tolist()
    own = [1.0 - sum(each[start:end]) for start, end in itertools.pairwise(first)]  # to the last bit as well
    everyone = np.arange(n)
    entries = np.concatenate([values, own]), (np.concatenate([rows, everyone]), np.concatenate([columns, everyone]))
    return scipy.sparse.csr_array(entries, shape=(n, n))


def check_own_weights(own: Mapping[int, float], least: float, algorithm: str) -> None:
    """Raise unless all W_ii, by node, are above `least`: then every eigenvalue of W is above 2 least - 1."""
    node = min(own, key=lambda each: own[each])
    if own[node] <= least + ROUNDING:
        bound = fractions.Fraction(least).limit_denominator(100)
        raise ConfigError(
            f"laziness: W_ii={own[node]:.4g} on node {node}, and {algorithm} needs more than {bound} on every node: it "
            f"may diverge if an eigenvalue of W is at or below {2 * bound - 1}; give laziness=0.35"
        )


def edge_array(graph: nx.Graph) -> npt.NDArray[np.int64]:
    """[edges, 2], the two ends of every edge."""
    flat = np.fromiter(itertools.chain.from_iterable(graph.edges), np.int64, 2 * graph.number_of_edges())
    return flat.reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class Strategy:
    """Where lambda enters. All three vectors have one entry per node.

    mixing_weights  the lambda that W is built from: 1 for I, lambda for II
    gradient_scale  the diagonal of G: lambda for I, 1 for II
    average_weights pi, the stationary distribution of W: 1/n for I, lambda/n for II
    """

    name: str
    mixing_weights: Weights
    gradient_scale: Weights
    average_weights: Weights


def strategy(name: str, weights: Weights) -> Strategy:
    """Strategy I (weights in the loss) or II (weights in the mixing) for these node weights."""
    check_choice("strategy", name, STRATEGIES)
    ones = uniform(weights.size)
    in_mixing, in_loss = (ones, weights) if name == "I" else (weights, ones)
    return Strategy(name, in_mixing, in_loss, in_mixing / np.float64(weights.size))


@dataclass(frozen=True, slots=True)
class NodeShare:
    """Node i's own entries of lambda, of a strategy's vectors, and of the graph."""

    neighbours: list[int]
    weight: float
    mixing_weight: float
    gradient_scale: float
    average_weight: float


def node_share(node: int, graph: nx.Graph, weights: Weights, name: str) -> NodeShare:
    """What node i is told of the network before it talks to anyone; graph and weights are taken as checked."""
    plan = strategy(name, weights)
    entries = (weights, plan.mixing_weights, plan.gradient_scale, plan.average_weights)
    return NodeShare(sorted(graph[node]), *(float(vector[node]) for vector in entries))


def checked(graph: nx.Graph, weights: Sequence[float] | Weights, nodes: int) -> tuple[nx.Graph, Weights]:
    """A user's graph and weights for this many nodes, or a clear error."""
    if graph.number_of_nodes() != nodes:
        raise ConfigError(f"world size {nodes}: the graph has {graph.number_of_nodes()} nodes; start one rank per node")
    return check_graph(graph), normalise(np.asarray(weights, dtype=np.float64), nodes)
