"""The best reversible mixing weights for a graph: how far the local rule is from what is possible.

W, found = optimal_weights(graph, weights)     # needs the extra: pip install 'dgt[optimal]'

Metropolis-Hastings needs only what a node's neighbours tell it. Knowing the whole graph, the fastest W in detailed
balance with lambda is a convex problem in the flows Q_ij = lambda_i W_ij = Q_ji >= 0 on the edges and the diagonal:

    minimise  || D^-1/2 Q D^-1/2 - sqrt(lambda) sqrt(lambda)^T / n ||_2    with    Q 1 = lambda
"""

from __future__ import annotations

import warnings

import networkx as nx
import numpy as np
import scipy.sparse

from dgt.errors import ConfigError
from dgt.network.mixing import edge_array, mixing_matrix
from dgt.network.spectral import Spectrum, spectrum_of
from dgt.network.weights import Weights

MOST_NODES = 200
"""Above, the semidefinite program takes minutes."""
ACCURACY, MOST_ITERATIONS = 1e-6, 5000


def optimal_weights(graph: nx.Graph, weights: Weights) -> tuple[scipy.sparse.csr_array, Spectrum]:
    """W of the largest gap for this graph and these weights, and its spectrum; never below Metropolis-Hastings."""
    n = int(weights.size)
    if n > MOST_NODES:
        raise ConfigError(
            f"optimal weights for {n} nodes: at most {MOST_NODES}; the semidefinite program takes too long"
        )
    local = mixing_matrix(graph, weights)
    best, found = local, spectrum_of(local, weights)
    if n == 1:
        return best, found
    edges = edge_array(graph)
    W = _feasible(edges, _solved(edges, weights), weights)
    if spectrum_of(W, weights).rho < found.rho:
        best, found = W, spectrum_of(W, weights)
    return best, found


def _solved(edges: np.ndarray, weights: Weights) -> np.ndarray:
    """The flow on every edge, as exact as the solver is."""
    try:
        import cvxpy
    except ImportError:
        raise ConfigError("optimal weights: cvxpy is not installed; pip install 'dgt[optimal]'") from None
    n, m = int(weights.size), len(edges)
    root = np.sqrt(weights)
    flow = cvxpy.Variable(m, nonneg=True)
    # S = I - sum_e flow_e b_e b_e^T, b_e = (e_i - e_j) scaled by 1/sqrt(lambda)
    ends, every = edges.T, np.arange(m)
    i, j = ends
    entries = np.concatenate([1 / weights[i], 1 / weights[j], -1 / (root[i] * root[j]), -1 / (root[i] * root[j])])
    places = np.concatenate([i * n + i, j * n + j, i * n + j, j * n + i])
    spread = scipy.sparse.csr_array((entries, (places, np.tile(every, 4))), shape=(n * n, m))
    S = np.eye(n) - cvxpy.reshape(spread @ flow, (n, n), order="C") - np.outer(root, root) / n
    incidence = scipy.sparse.csr_array((np.ones(2 * m), (np.concatenate([i, j]), np.tile(every, 2))), shape=(n, m))
    rho = cvxpy.Variable()
    limits = [incidence @ flow <= weights, S << rho * np.eye(n), S >> -rho * np.eye(n)]
    problem = cvxpy.Problem(cvxpy.Minimize(rho), limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an inaccurate solution is made exact below, and counts for what it is
        problem.solve(solver=cvxpy.SCS, eps=ACCURACY, max_iters=MOST_ITERATIONS)
    if flow.value is None:
        raise ConfigError(f"optimal weights: the solver ended with '{problem.status}'")
    return np.asarray(flow.value)


def _feasible(edges: np.ndarray, flow: np.ndarray, weights: Weights) -> scipy.sparse.csr_array:
    """W from flows that may be off by the solver's accuracy: none negative, and no node gives more than it has."""
    n, (i, j) = int(weights.size), edges.T
    flow = np.maximum(flow, 0.0)
    given = np.bincount(edges.T.ravel(), np.tile(flow, 2), n)
    scale = np.minimum(1.0, weights / np.maximum(given, 1e-300))
    flow = flow * np.minimum(scale[i], scale[j])  # the same number at both ends: detailed balance
    rows, columns = np.concatenate([i, j]), np.concatenate([j, i])
    values = np.tile(flow, 2) / weights[rows]
    own = np.maximum(1 - np.bincount(rows, values, n), 0.0)
    everyone = np.arange(n)
    entries = np.concatenate([values, own]), (np.concatenate([rows, everyone]), np.concatenate([columns, everyone]))
    return scipy.sparse.csr_array(entries, shape=(n, n))
