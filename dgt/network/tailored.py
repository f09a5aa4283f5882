"""The paper's algorithm "Build Graph From Weights": a connected graph with degrees in proportion to lambda.

Four steps, one function each, as in the paper's appendix: `scale_to_degrees`, `havel_hakimi_construct`,
`make_connected`, `fallback_connected_graph`. Everything random comes from one seeded generator.
"""

from __future__ import annotations

import networkx as nx
import numpy as np

from dgt.config.checks import check_range
from dgt.network.swaps import joined_up
from dgt.network.weights import Weights

TRIALS = 50
SWAPS = 1000
LARGE = 2000
"""Nodes above which the same steps are taken in ways that do not look at all nodes for each one."""


def default_average_degree(n: int) -> float:
    """The paper's tables C and D have 10; its 16-node graphs, whose degree is not given, fit 5."""
    return 5.0 if n <= 16 else 10.0


def build_graph_from_weights(weights: Weights, avg_degree: float | None = None, seed: int = 0) -> nx.Graph:
    """Connected simple graph with deg(i) as close to avg_degree * lambda_i as can be realised."""
    n = int(weights.size)
    if avg_degree is None:
        avg_degree = default_average_degree(n)  # on a few nodes more than there is room for: then as many as fit
    else:
        check_range("topology.avg_degree", avg_degree, 1, max(1, n - 1))
    degrees = scale_to_degrees(weights, avg_degree)
    random = np.random.default_rng(seed)
    for _ in range(TRIALS):
        graph = (quick_havel_hakimi if n > LARGE else havel_hakimi_construct)(degrees, random)
        if graph is None:
            continue
        graph = quickly_connected(graph, random) if n > LARGE else make_connected(graph, random)
        if nx.is_connected(graph):
            return graph
    return fallback_connected_graph(degrees)


def scale_to_degrees(weights: Weights, avg_degree: float) -> list[int]:
    """d_i = round(c lambda_i) clipped to [1, n-1], c such that the total is near n * avg_degree; even sum."""
    n = int(weights.size)
    if n == 1:
        return [0]
    total = 2 * round(n * avg_degree / 2)
    # lambda was rescaled in floating point: take off its last digits so that exact halves stay halves
    wanted = np.rint(np.round(total / weights.sum() * weights, 9)).astype(int)
    degrees = np.clip(wanted, 1, n - 1)
    if degrees.sum() % 2:
        # the paper leaves the index open; the first node of least degree gives its published list for C
        degrees[np.argmin(degrees)] += 1
    return degrees.tolist()


def havel_hakimi_construct(degrees: list[int], random: np.random.Generator) -> nx.Graph | None:
    """Join the node of largest residual degree to the next largest, ties in random order; None on failure."""
    graph = nx.empty_graph(len(degrees))
    residual = dict(enumerate(degrees))
    while any(residual.values()):
        order = sorted(random.permutation(list(residual)).tolist(), key=lambda i: -residual[i])
        hub, rest = order[0], order[1:]
        needed = residual.pop(hub)
        # the hub leaves the list for good, so none of the others is its neighbour yet
        if needed > len(rest) or (needed and residual[rest[needed - 1]] == 0):
            return None
        for other in rest[:needed]:
            graph.add_edge(hub, other)
            residual[other] -= 1
    return graph


def quick_havel_hakimi(degrees: list[int], random: np.random.Generator) -> nx.Graph | None:
    """The same distribution of graphs from lists of the nodes by residual degree; time in proportion to the edges."""
    by_degree: list[list[int]] = [[] for _ in range(max(degrees) + 1)]
    for node, degree in enumerate(degrees):
        by_degree[degree].append(node)
    edges = []
    for largest in range(max(degrees), 0, -1):
        while by_degree[largest]:
            hub, needed = _take(by_degree[largest], 1, random)[0], largest
            chosen: list[tuple[int, list[int]]] = []
            for degree in range(largest, 0, -1):
                chosen.append((degree, _take(by_degree[degree], needed, random)))
                needed -= len(chosen[-1][1])
                if not needed:
                    break
            if needed:
                return None
            for degree, nodes in chosen:
                by_degree[degree - 1] += nodes
                edges += [(hub, node) for node in nodes]
    graph = nx.empty_graph(len(degrees))
    graph.add_edges_from(edges)
    return graph


def _take(nodes: list[int], count: int, random: np.random.Generator) -> list[int]:
    """Remove and return so many random nodes, or all there are."""
    for k in range(min(count, len(nodes))) if count < len(nodes) else ():
        place = int(random.integers(len(nodes) - k))
        nodes[place], nodes[-1 - k] = nodes[-1 - k], nodes[place]
    taken = nodes[max(len(nodes) - count, 0) :]
    del nodes[max(len(nodes) - count, 0) :]
    return taken


def quickly_connected(graph: nx.Graph, random: np.random.Generator) -> nx.Graph:
    """Swaps as in `make_connected`, of all the smaller components with the largest at once."""
    connected = nx.empty_graph(graph.number_of_nodes())
    connected.add_edges_from(joined_up(np.array(graph.edges), graph.number_of_nodes(), random).tolist())
    return connected


def make_connected(graph: nx.Graph, random: np.random.Generator) -> nx.Graph:
    """Swap edges between components, (a,b),(c,d) -> (a,c),(b,d), until one is left; degrees stay.

    May still be disconnected after `SWAPS` attempts (for example with too few edges for a tree).
    """
    for _ in range(SWAPS):
        components = list(nx.connected_components(graph))
        if len(components) == 1:
            return graph
        first, second = (components[k] for k in random.choice(len(components), size=2, replace=False))
        a, b = _random_edge(graph, first, random)
        c, d = _random_edge(graph, second, random)
        if random.random() < 0.5:
            c, d = d, c
        # the four nodes are distinct and no edge joins two components, so every pairing is admissible
        graph.remove_edges_from([(a, b), (c, d)])
        graph.add_edges_from([(a, c), (b, d)])
    return graph


def fallback_connected_graph(degrees: list[int]) -> nx.Graph:
    """A ring, then edges between the nodes that miss most of their degree, as long as any pair can be joined."""
    n = len(degrees)
    graph = nx.empty_graph(n)
    graph.add_edges_from((i, (i + 1) % n) for i in range(n) if n > 1 and i != (i + 1) % n)
    need = [max(0, degrees[i] - graph.degree[i]) for i in range(n)]
    while max(need) > 0:
        u = int(np.argmax(need))
        open_nodes = [v for v in range(n) if v != u and need[v] > 0 and not graph.has_edge(u, v)]
        if not open_nodes:
            break
        v = max(open_nodes, key=lambda node: need[node])
        graph.add_edge(u, v)
        need[u] -= 1
        need[v] -= 1
    return graph


def _random_edge(graph: nx.Graph, component: set[int], random: np.random.Generator) -> tuple[int, int]:
    edges = sorted(tuple(sorted(edge)) for edge in graph.subgraph(component).edges)
    return edges[random.integers(len(edges))]
