"""Networks that have lost nodes, and nodes that return: the twin of what ranks do then."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from dgt.network.weights import Weights
from dgt.reference.stacked import Array, weighted_sum


def without(W: scipy.sparse.csr_array, kept: list[int]) -> scipy.sparse.csr_array:
    """W among those who are left: what they gave to the lost goes to their own diagonal."""
    left = W[kept][:, kept].toarray()
    np.fill_diagonal(left, 0.0)
    return scipy.sparse.csr_array(left + np.diag(1.0 - left.sum(1)))


def with_returned(theta: Array, kept: list[int], shares: Weights, nodes: int) -> Array:
    """Where a network of so many nodes starts anew, Y_0 = G g_0, from those who were left and their shares pi:
    theta_i of their own, and their average sum_i pi_i theta_i for every node that returns.
    """
    everybody = np.broadcast_to(weighted_sum(shares, theta), (nodes, *theta.shape[1:])).copy()
    everybody[kept] = theta
    return everybody


def taken_in(theta: Array, kept: list[int], W: scipy.sparse.csr_array) -> Array:
    """Where a network starts anew, Y_0 = G g_0, that takes nodes in while it trains, from the theta of those who were
    there: theta_i = sum_j W_ij theta_j / sum_j W_ij over the neighbours j that were, for every node i that was not.
    """
    everybody = np.zeros((W.shape[0], *theta.shape[1:]))
    everybody[kept] = theta
    present = np.zeros(W.shape[0])
    present[kept] = 1.0
    for node in sorted(set(range(W.shape[0])) - set(kept)):
        row = W[[node]].toarray()[0] * present
        everybody[node] = np.tensordot(row / row.sum(), everybody, 1)
    return everybody
