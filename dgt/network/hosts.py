"""Which rank should be which node, so that few edges run between hosts: `placement=graph`."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np

RANDOM_STARTS = 8
SMALL = 100  # nodes up to which random starts cost nothing to speak of


def edges_between(graph: nx.Graph, node_of_rank: Sequence[int], host_of_rank: Sequence[int]) -> int:
    """Edges whose ends are on different hosts."""
    host = dict(zip(node_of_rank, host_of_rank, strict=True))
    return sum(host[i] != host[j] for i, j in graph.edges)


def place(graph: nx.Graph, host_of_rank: Sequence[int]) -> list[int]:
    """A node for every rank, node 0 for rank 0; never more edges between hosts than where rank i is node i.

    Several beginnings (as given, recursive spectral bisection, random), each improved by swaps; the best one counts.
    """
    nodes = list(range(len(host_of_rank)))
    draw = np.random.default_rng(0)  # the same on all ranks
    starts = [nodes, _bisected(graph, host_of_rank)]
    starts += [draw.permutation(nodes).tolist() for _ in range(RANDOM_STARTS) if len(nodes) <= SMALL]
    placed = [_swapped(graph, start, np.asarray(host_of_rank)) for start in starts]
    return min(placed, key=lambda order: edges_between(graph, order, host_of_rank))


def _bisected(graph: nx.Graph, host_of_rank: Sequence[int]) -> list[int]:
    """Nodes in the order of the Fiedler vector go to the first and the second half of the hosts, and so on in each."""
    ranks_of = {host: [r for r, h in enumerate(host_of_rank) if h == host] for host in sorted(set(host_of_rank))}
    placed = [0] * len(host_of_rank)

    def split(nodes: list[int], hosts: list[int]) -> None:
        if len(hosts) == 1:
            for rank, node in zip(ranks_of[hosts[0]], nodes, strict=True):
                placed[rank] = node
            return
        order = _spectral_order(graph, nodes)
        half = len(hosts) // 2
        count = sum(len(ranks_of[host]) for host in hosts[:half])
        split(order[:count], hosts[:half])
        split(order[count:], hosts[half:])

    split(list(graph.nodes), list(ranks_of))
    return placed


def _spectral_order(graph: nx.Graph, nodes: list[int]) -> list[int]:
    """By the second eigenvector of the Laplacian; dense, since sparse solvers stall on the ties of rings and tori."""
    _, vectors = np.linalg.eigh(nx.laplacian_matrix(graph.subgraph(nodes), nodelist=nodes).toarray().astype(float))
    return [nodes[k] for k in np.argsort(vectors[:, 1], kind="stable")]


def _swapped(graph: nx.Graph, node_of_rank: list[int], host_of_rank: np.ndarray) -> list[int]:
    """Swap two nodes on different hosts while that cuts fewer edges, the best pair first (Kernighan and Lin's gain)."""
    nodes = np.asarray(node_of_rank)
    zero = int(np.flatnonzero(nodes == 0)[0])
    nodes[[0, zero]] = nodes[[zero, 0]]
    adjacency = nx.to_numpy_array(graph, nodelist=range(len(nodes)), dtype=np.float32)[np.ix_(nodes, nodes)]
    hosts = np.unique(host_of_rank)
    where = (host_of_rank[:, None] == hosts).astype(np.float32)  # [rank, host]
    for _ in range(len(nodes) * len(hosts)):
        near = adjacency @ where  # neighbours of a rank's node on each host
        own = (near * where).sum(1)
        there = near @ where.T  # of u's neighbours, those on v's host
        gain = there - own[:, None] + there.T - own[None, :] - 2 * adjacency
        gain[host_of_rank[:, None] == host_of_rank[None, :]] = 0
        gain[0] = gain[:, 0] = 0
        u, v = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[u, v] <= 0:
            break
        nodes[[u, v]] = nodes[[v, u]]
        adjacency[[u, v]] = adjacency[[v, u]]
        adjacency[:, [u, v]] = adjacency[:, [v, u]]
    return [int(node) for node in nodes]
