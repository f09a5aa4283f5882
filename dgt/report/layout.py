"""Positions of a graph's nodes in the unit square: rings, grids, stars in their usual shape, others by distances."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np

ROUND = ("ring", "exponential", "complete")
LATTICES = ("grid", "torus")
BY_DISTANCE = 80  # nodes; larger graphs use the spring layout, which is faster


def positions(topology: str, nodes: int, edges: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """(x, y) of every node, both from 0 to 1, y downwards; the same for the same graph."""
    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(edges)
    if topology in LATTICES:
        columns = nodes // next(rows for rows in range(int(nodes**0.5), 0, -1) if nodes % rows == 0)
        places = np.array([(i % columns, i // columns) for i in range(nodes)], dtype=float)
    elif topology in ROUND or nodes < 4:
        places = _circle(nodes)
    elif topology == "star":
        places = np.vstack([np.zeros((1, 2)), _circle(nodes - 1)])
    else:
        start = dict(enumerate(_circle(nodes)))
        by_distance = nodes <= BY_DISTANCE and nx.is_connected(graph)
        found = nx.kamada_kawai_layout(graph, pos=start) if by_distance else nx.spring_layout(graph, seed=0)
        places = np.array([found[i] for i in range(nodes)])
    low, high = places.min(0), places.max(0)
    scale = max(float((high - low).max()), 1e-9)
    centred = (places - (low + high) / 2) / scale + 0.5
    return [(round(float(x), 4), round(float(y), 4)) for x, y in centred]


def _circle(nodes: int) -> np.ndarray:
    """Node 0 on top, the others clockwise."""
    angle = 2 * np.pi * np.arange(nodes) / max(nodes, 1)
    return np.column_stack([np.sin(angle), -np.cos(angle)])
