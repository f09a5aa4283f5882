"""Topologies: undirected, connected, simple networkx graphs on the nodes 0..n-1.

graph = dgt.graphs.grid(16)          # or any connected networkx.Graph of your own
graph = dgt.graphs.from_edge_list("edges.txt", 16)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import networkx as nx
import numpy as np
from scipy.spatial import cKDTree

from dgt.config import TopologyConfig, files
from dgt.config.checks import check_range
from dgt.config.settings import Meaning
from dgt.errors import ConfigError
from dgt.network.swaps import improved
from dgt.network.tailored import build_graph_from_weights, default_average_degree
from dgt.network.topologies import make, topology
from dgt.network.weights import Weights, normalise

DENSE = 2000  # nodes up to which erdos_renyi draws a number for every pair
MOST_BYTES = 512 * 2**20  # of a file of edges
MOST_EDGES = 10_000_000  # some three gigabytes as a networkx graph

Seed = Annotated[int, Meaning("of the draw, independent of the run's seed", low=0)]
Tries = Annotated[int, Meaning("graphs drawn before giving up on a connected one", low=1)]


@topology(proposed=True)
def ring(n: int) -> nx.Graph:
    """E = {(i, i +- 1 mod n)}."""
    return _circulant(n, [1])


@topology(proposed=True)
def grid(n: int) -> nx.Graph:
    """Non-periodic lattice, row by row, on the most square rows x columns = n.

    The paper's text says periodic, but its table of spectral gaps is that of the non-periodic grid;
    `torus` is the periodic one.
    """
    _, columns = _most_square(n)
    right = ((i, i + 1) for i in range(n) if (i + 1) % columns)
    down = ((i, i + columns) for i in range(n - columns))
    return _simple(n, [*right, *down])


@topology(proposed=True)
def torus(n: int) -> nx.Graph:
    """The grid with periodic boundaries."""
    _, columns = _most_square(n)
    right = ((i, i - i % columns + (i + 1) % columns) for i in range(n))
    down = ((i, (i + columns) % n) for i in range(n))
    return _simple(n, [*right, *down])


@topology(proposed=True)
def exponential(n: int) -> nx.Graph:
    """E = {(i, i +- 2^p mod n)}, p = 0..floor(log2(n/2))."""
    return _circulant(n, [2**p for p in range((n // 2).bit_length())])


def circulant(n: int, degree: int) -> nx.Graph:
    """The nearest degree/2 nodes on either side of a circle; with an odd degree the opposite one too (n even)."""
    opposite = [n // 2] if degree % 2 else []
    if opposite and n % 2:
        raise ConfigError(f"degree={degree}: {n} nodes cannot all have an odd number of neighbours; one more or less")
    return _circulant(n, [*range(1, degree // 2 + 1), *opposite])


@topology(proposed=True)
def erdos_renyi(
    n: int,
    probability: Annotated[
        float | None,
        Meaning("of each edge; null: 2 ln(n) / n, twice the threshold of connectivity", low=0, high=1, open_low=True),
    ] = None,
    seed: Seed = 0,
    tries: Tries = 1000,
) -> nx.Graph:
    """Every edge exists with the given probability (default 2 ln(n)/n); redrawn until connected."""
    p = min(1.0, 2 * math.log(max(n, 2)) / max(n, 2)) if probability is None else probability
    check_range("topology.probability", p, 0, 1, open_low=True)

    label = f"erdos_renyi with topology.probability={p:g}, nodes={n}"
    _check_edges(label, p * n * (n - 1) / 2)

    def draw(random: np.random.Generator) -> nx.Graph:
        drawn = np.argwhere(np.triu(random.random((n, n)) < p, k=1)) if n <= DENSE else _sparse_pairs(n, p, random)
        return _simple(n, ((i, j) for i, j in drawn.tolist()))

    return _until_connected(draw, seed, tries, label)


def _sparse_pairs(n: int, p: float, random: np.random.Generator) -> np.ndarray:
    """Each pair with probability p, in time and memory of those drawn: the gaps between them are geometric."""
    pairs = n * (n - 1) // 2
    expected = int(p * pairs)
    gaps = random.geometric(p, size=expected + 10 * math.isqrt(expected) + 100)  # ten standard deviations to spare
    number = np.cumsum(gaps) - 1
    number = number[number < pairs]
    j = ((1 + np.sqrt(8.0 * number + 1)) / 2).astype(np.int64)  # pairs (i, j), i < j, counted by j and then by i
    j += (j * (j + 1) // 2 <= number).astype(np.int64) - (j * (j - 1) // 2 > number)  # where the root was rounded
    return np.stack([number - j * (j - 1) // 2, j], axis=1)


@topology
def geometric(
    n: int,
    radius: Annotated[
        float, Meaning("nodes of the unit square at most this far apart are neighbours", low=0, open_low=True)
    ] = 0.3,
    seed: Seed = 0,
    tries: Tries = 1000,
) -> nx.Graph:
    """Uniform points of the unit square, neighbours when at most `radius` apart; redrawn until connected."""
    check_range("topology.radius", radius, 0, open_low=True)

    label = f"geometric with topology.radius={radius:g}, nodes={n}"
    _check_edges(label, min(math.pi * radius**2, 1) * n * (n - 1) / 2)

    def draw(random: np.random.Generator) -> nx.Graph:
        points = random.random((n, 2))
        near = cKDTree(points).query_pairs(radius * (1 + 1e-9), output_type="ndarray")
        near = near[np.linalg.norm(points[near[:, 0]] - points[near[:, 1]], axis=-1) <= radius]
        return _simple(n, ((i, j) for i, j in near[np.lexsort(near.T[::-1])].tolist()))

    return _until_connected(draw, seed, tries, label)


@topology
def complete(n: int) -> nx.Graph:
    """Everyone is everyone's neighbour."""
    _check_edges(f"complete, nodes={n}", n * (n - 1) / 2)
    return _simple(n, ((i, j) for i in range(n) for j in range(i)))


@topology
def star(n: int) -> nx.Graph:
    """Node 0 is everyone's only neighbour."""
    return _simple(n, ((0, i) for i in range(1, n)))


@topology(proposed=True, slow="optimize")
def tailored(
    weights: Sequence[float] | Weights,
    avg_degree: Annotated[float | None, Meaning("average degree; null: 5 up to 16 nodes, 10 above", low=1)] = None,
    seed: Seed = 0,
    optimize: Annotated[
        bool, Meaning("swap edges to widen the spectral gap, degrees stay; false: the paper's plain draw")
    ] = True,
) -> nx.Graph:
    """Degrees in proportion to the weights, joined by the paper's algorithm; then edges swapped to widen the gap."""
    vector = normalise(np.asarray(weights, dtype=np.float64))
    average = default_average_degree(vector.size) if avg_degree is None else avg_degree
    _check_edges(f"tailored with topology.avg_degree={average:g}, nodes={vector.size}", average * vector.size / 2)
    graph = build_graph_from_weights(vector, avg_degree, seed)
    return improved(graph, vector, seed) if optimize else graph


def from_edge_list(path: str | Path, n: int) -> nx.Graph:
    """One edge 'i j' (or 'i,j') per line, nodes counted from 0, '#' starts a comment."""
    edges = []
    try:
        lines = files.read_text(path, MOST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"topology.path={path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise ConfigError(f"topology.path={path}, line {number}: '{line.strip()}' is not an edge 'i j'")
        i, j = map(int, words)
        if max(i, j) >= n or i == j:
            raise ConfigError(
                f"topology.path={path}, line {number}: '{line.strip()}' must join two different nodes from 0 to {n - 1}"
            )
        edges.append((i, j))
    if not edges and n > 1:
        raise ConfigError(f"topology.path={path}: there is no edge in it; give one 'i j' per line")
    return check(_simple(n, edges), f"topology.path={path}")


@topology(name="file")
def _from_file(
    n: int,
    path: Annotated[
        str | None,
        Meaning(
            'text file, one edge "i j" per line, nodes counted from 0',
            needed="topology=file: give the edge list, topology.path=FILE",
        ),
    ] = None,
) -> nx.Graph:
    return from_edge_list(path or "", n)


def from_config(config: TopologyConfig, weights: Weights) -> nx.Graph:
    """The graph a config asks for, on as many nodes as there are weights; schedules too: `schedules.from_config`."""
    graph = make(config, weights)
    if not isinstance(graph, nx.Graph):
        raise ConfigError(
            f"topology={config.name}: its edges change from step to step, and here one graph is needed, such as ring"
        )
    return finished(config, weights, graph)


def finished(config: TopologyConfig, weights: Weights, graph: nx.Graph) -> nx.Graph:
    """The graph as it was made, or checked and with its nodes in order where it comes from outside the package."""
    if config.target is None:
        return graph
    return _simple(int(weights.size), check(graph, f"topology._target_={config.target}").edges)


def check(graph: nx.Graph, label: str = "graph") -> nx.Graph:
    """Raise unless the graph is undirected, simple, connected and has the nodes 0..n-1."""
    n = graph.number_of_nodes()
    if graph.is_directed() or graph.is_multigraph():
        raise ConfigError(f"{label}: must be an undirected simple graph, got {type(graph).__name__}")
    if set(graph) != set(range(n)) or n == 0:
        raise ConfigError(f"{label}: the nodes must be 0..{max(n - 1, 0)}")
    if any(True for _ in nx.selfloop_edges(graph)):
        raise ConfigError(f"{label}: node {next(iter(nx.selfloop_edges(graph)))[0]} is its own neighbour")
    pieces = list(nx.connected_components(graph))
    if len(pieces) > 1:
        first, second = (min(piece) for piece in pieces[:2])
        raise ConfigError(
            f"{label}: not connected ({len(pieces)} pieces of {n} nodes); no path joins node {first} and node {second}"
        )
    return graph


def _circulant(n: int, offsets: Iterable[int]) -> nx.Graph:
    return _simple(n, ((i, (i + offset) % n) for i in range(n) for offset in offsets))


def _simple(n: int, edges: Iterable[tuple[int, int]]) -> nx.Graph:
    """Nodes 0..n-1 in order; wrap-around on tiny graphs makes loops, which are dropped."""
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((i, j) for i, j in edges if i != j)
    return graph


def _check_edges(label: str, edges: float) -> None:
    if edges > MOST_EDGES:
        raise ConfigError(f"{label}: some {edges:.2g} edges do not fit; at most {MOST_EDGES:.0e}, take a sparser graph")


def _most_square(n: int) -> tuple[int, int]:
    rows = next(divisor for divisor in range(math.isqrt(n), 0, -1) if n % divisor == 0)
    return rows, n // rows


def _until_connected(draw: Callable[[np.random.Generator], nx.Graph], seed: int, tries: int, label: str) -> nx.Graph:
    random = np.random.default_rng(seed)
    for _ in range(tries):
        graph = draw(random)
        if nx.is_connected(graph):
            return graph
    raise ConfigError(f"{label}: no connected graph in {tries} draws (topology.tries); make it denser")
