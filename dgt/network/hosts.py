"""Which rank should be which node, so that few edges run between hosts: `placement=graph`."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np

SPECTRAL_NODES = 2000  # above, the eigenvector takes longer than it saves


def edges_between(graph: nx.Graph, node_of_rank: Sequence[int], host_of_rank: Sequence[int]) -> int:
    """Edges whose ends are on different hosts."""
    host = dict(zip(node_of_rank, host_of_rank, strict=True))
    return sum(host[i] != host[j] for i, j in graph.edges)


def place(graph: nx.Graph, host_of_rank: Sequence[int]) -> list[int]:
    """A node for every rank: nodes in the order of the Fiedler vector, then the best swaps; never worse than rank = node."""
    ranks = sorted(range(len(host_of_rank)), key=lambda rank: (host_of_rank[rank], rank))
    starts = [list(range(len(ranks)))]
    if 2 < len(ranks) <= SPECTRAL_NODES and nx.is_connected(graph):
        order = list(nx.spectral_ordering(graph, seed=0))
        start = [0] * len(ranks)
        for rank, node in zip(ranks, order, strict=True):
            start[rank] = node
        starts.append(start)
    placed = [_swapped(graph, start, np.asarray(host_of_rank)) for start in starts]
    return min(placed, key=lambda nodes: edges_between(graph, nodes, host_of_rank))


def _swapped(graph: nx.Graph, node_of_rank: list[int], host_of_rank: np.ndarray) -> list[int]:
    """Swap two nodes on different hosts as long as that cuts fewer edges, the best pair first (Kernighan-Lin's gain)."""
    nodes = np.asarray(node_of_rank)
    adjacency = nx.to_numpy_array(graph, nodelist=range(len(nodes)), dtype=np.int32)[np.ix_(nodes, nodes)]
    hosts = np.unique(host_of_rank)
    where = (host_of_rank[:, None] == hosts).astype(np.int32)  # [rank, host]
    for _ in range(len(nodes) * len(hosts)):
        near = adjacency @ where  # neighbours of a rank's node on each host
        own = (near * where).sum(1)
        there = near @ where.T  # of u's neighbours, those on v's host
        gain = there - own[:, None] + there.T - own[None, :] - 2 * adjacency
        gain[host_of_rank[:, None] == host_of_rank[None, :]] = 0
        u, v = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[u, v] <= 0:
            break
        nodes[[u, v]] = nodes[[v, u]]
        adjacency[[u, v]] = adjacency[[v, u]]
        adjacency[:, [u, v]] = adjacency[:, [v, u]]
    return [int(node) for node in nodes]
