"""A network as plain values, for network.json: weights, degrees, edges, and every node's mixing row."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from dgt.network.schedules import Schedule, Topology
from dgt.network.weights import Weights

MOST_NODES = 2000  # of larger networks a sample is recorded, of all weights alike, and no edges


def network_record(
    iteration: int,
    weights: Weights,
    W: scipy.sparse.csr_array,
    members: list[int] | None = None,
    graph: Topology | None = None,
) -> dict[str, Any]:
    """The network from this iteration on, as plain values; nodes are counted 0, 1, 2, ... unless `members` names them.

    Node i's neighbours are those with W_ij > 0, and `mixing[i]` is its row {j: W_ij}. On a schedule W is the mean of
    its exchanges, and `schedule` says how many there are until they repeat.
    """
    n, W = int(weights.size), scipy.sparse.csr_array(W)
    off_diagonal = scipy.sparse.csr_array(W - scipy.sparse.diags_array(W.diagonal()))
    off_diagonal.eliminate_zeros()
    shown = recorded_nodes(weights)
    record: dict[str, Any] = {
        "iteration": iteration,
        "size": n,
        "nodes": [int(i) if members is None else members[i] for i in shown],
        "weights": weights[shown].tolist(),
        "degrees": np.diff(off_diagonal.indptr)[shown].tolist(),
    }
    if isinstance(graph, Schedule):
        record["schedule"] = {"exchanges": graph.period, "rounds": graph.rounds, "one_peer": graph.is_one_peer}
    if n <= MOST_NODES:
        upper = scipy.sparse.triu(off_diagonal, k=1).tocoo()
        record["edges"] = sorted([int(i), int(j)] for i, j in zip(upper.row, upper.col, strict=True))
        record["mixing"] = [
            dict(sorted({int(j): float(w) for j, w in zip(W.indices[a:b], W.data[a:b], strict=True)}.items()))
            for a, b in zip(W.indptr, W.indptr[1:], strict=False)
        ]
    return record


def recorded_nodes(weights: Weights) -> np.ndarray:
    """All nodes; of a large network a sample from the lightest to the heaviest, in the order of their numbers."""
    if weights.size <= MOST_NODES:
        return np.arange(weights.size)
    places = np.linspace(0, weights.size - 1, MOST_NODES).round().astype(np.int64)
    return np.sort(np.argsort(weights, kind="stable")[places])
