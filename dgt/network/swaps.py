"""Better graphs with the same degrees: edge swaps (a,b),(c,d) -> (a,c),(b,d) that widen the gap of W.

graph = improved(graph, weights, seed=0)      # the same degrees, never a smaller gap

rho = max(|sigma_2|, |sigma_n|) of the Metropolis-Hastings W is made smaller, in two ways. `anneal`, on small graphs:
random swaps, each judged by its eigenvalues, a little worse ones accepted at first. `climb`, on large ones: many random
swaps are ranked by how much they change rho to first order, the best are made together and judged by Lanczos.

All work is counted in swaps, never in seconds, so every machine finds the same graph: what is decided by comparing
floating-point numbers is decided with a margin far above rounding.

W = (1 - epsilon) P + epsilon I, so which graph has the smaller sigma_2 does not depend on epsilon, and sigma_n hardly
counts at the default laziness or above: graphs are improved for the default, whatever laziness a run has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy.sparse
import scipy.sparse.linalg
from scipy.sparse.csgraph import connected_components

from dgt.network.weights import Weights

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Edges = npt.NDArray[np.int64]  # [edges, 2]

LAZINESS = 0.3
ANNEALED, CLIMBED = 256, 100
"""Nodes up to which a graph is annealed, and above which it is climbed (before that)."""
HEAT = 0.003  # how much worse a first swap may be
MARGIN = 1e-9  # differences below this are none
SHARPNESS = 100  # of the soft maximum over |sigma| that swaps are ranked by
LEADING = 8  # eigenvectors that Lanczos finds


def improved(graph: nx.Graph, weights: Weights, seed: int = 0, laziness: float = LAZINESS) -> nx.Graph:
    """A connected graph of the same degrees whose W(lambda) has a gap at least as large."""
    n, edges = graph.number_of_nodes(), np.array(sorted(map(sorted, graph.edges)), dtype=np.int64).reshape(-1, 2)
    if n < 4 or len(edges) < 2:
        return graph
    chain, random = Chain.of(edges, weights, laziness), np.random.default_rng([seed, 1])
    better = edges
    if n > CLIMBED:
        better = climb(chain, better, random)
    if n <= ANNEALED:
        better = anneal(chain, better, random)
    if not chain.rho(better) < chain.rho(edges) - MARGIN:
        return graph
    made = nx.empty_graph(n)
    made.add_edges_from(np.unique(np.sort(better, axis=1), axis=0).tolist())
    return made


@dataclass(frozen=True, slots=True)
class Chain:
    """The symmetrised W of any graph with these degrees: S_ij = lambda_i W_ij / sqrt(lambda_i lambda_j)."""

    weights: Weights
    share: Array
    """lambda_i / d_i."""
    root: Array
    """sqrt(lambda_i)."""
    top: Array
    """The eigenvector of sigma_1 = 1, which is taken out."""
    laziness: float

    @classmethod
    def of(cls, edges: Edges, weights: Weights, laziness: float) -> Chain:
        root = np.sqrt(weights)
        degrees = np.bincount(edges.ravel(), minlength=weights.size)
        return cls(weights, weights / degrees, root, root / np.linalg.norm(root), laziness)

    def flow(self, i: Index, j: Index) -> Array:
        """lambda_i W_ij = (1 - eps) min(lambda_i/d_i, lambda_j/d_j)."""
        return (1 - self.laziness) * np.minimum(self.share[i], self.share[j])

    def sparse(self, edges: Edges) -> scipy.sparse.csr_array:
        n, (i, j) = self.weights.size, edges.T
        flow = self.flow(i, j)
        beside = flow / (self.root[i] * self.root[j])
        own = 1 - np.bincount(edges.T.ravel(), np.tile(flow, 2), n) / self.weights
        rows, columns = np.concatenate([i, j, np.arange(n)]), np.concatenate([j, i, np.arange(n)])
        return scipy.sparse.csr_array((np.concatenate([beside, beside, own]), (rows, columns)), shape=(n, n))

    def dense(self, edges: Edges) -> Array:
        """S - top top^T."""
        without_top: Array = self.sparse(edges).toarray() - np.outer(self.top, self.top)
        return without_top

    def leading(self, edges: Edges, tolerance: float, start: Array | None = None) -> tuple[Array, Array] | None:
        """Eigenvalues of largest modulus of S off `top`, with eigenvectors; None where Lanczos does not get there."""
        n = self.weights.size
        if n <= ANNEALED:
            values, vectors = np.linalg.eigh(self.dense(edges))
            return values, vectors
        S = self.sparse(edges)
        operator = scipy.sparse.linalg.LinearOperator(
            (n, n), matvec=lambda v: S @ v - (self.top @ v) * self.top, dtype=np.float64
        )
        start = np.random.default_rng(0).standard_normal(n) if start is None else start
        try:
            found: tuple[Array, Array] = scipy.sparse.linalg.eigsh(
                operator, LEADING, which="LM", v0=start, ncv=3 * LEADING, tol=tolerance, maxiter=100
            )
        except scipy.sparse.linalg.ArpackNoConvergence:
            return None
        return found

    def rho(self, edges: Edges) -> float:
        found = self.leading(edges, 1e-9)
        return np.inf if found is None else float(np.abs(found[0]).max())


def anneal(chain: Chain, edges: Edges, random: np.random.Generator) -> Edges:
    """Random swaps one at a time, accepted unless they make rho larger by more than a random, ever smaller amount."""
    n, m = chain.weights.size, len(edges)
    everyone = np.arange(n)
    flow = chain.flow(everyone[:, None], everyone[None, :])
    beside = (flow / np.outer(chain.root, chain.root)).tolist()
    own_i, own_j = (flow / chain.weights[:, None]).tolist(), (flow / chain.weights[None, :]).tolist()
    joined = np.zeros((n, n), dtype=bool)
    joined[edges[:, 0], edges[:, 1]] = joined[edges[:, 1], edges[:, 0]] = True
    S, ends = chain.dense(edges), edges.tolist()
    judged = min(500 * n, 128_000 // n)
    slack = HEAT * (1 - np.arange(judged) / judged) ** 2 * random.standard_exponential(judged) + MARGIN
    rho = best = _rho(S)
    best_ends = [pair[:] for pair in ends]
    count = 0
    for first, second, flip in _pairs(m, 20 * judged, random):
        (a, b), (c, d) = ends[first], ends[second]
        if flip:
            c, d = d, c
        if a in (c, d) or b in (c, d) or joined[a, c] or joined[b, d]:
            continue
        changed = S.copy()
        for i, j, sign in ((a, b, -1.0), (c, d, -1.0), (a, c, 1.0), (b, d, 1.0)):
            changed[i, j] += sign * beside[i][j]
            changed[j, i] = changed[i, j]
            changed[i, i] -= sign * own_i[i][j]
            changed[j, j] -= sign * own_j[i][j]
        after = _rho(changed)
        if after - rho < slack[count]:
            S, rho = changed, after
            joined[a, b] = joined[b, a] = joined[c, d] = joined[d, c] = False
            joined[a, c] = joined[c, a] = joined[b, d] = joined[d, b] = True
            ends[first], ends[second] = [a, c], [b, d]
            if rho < best - MARGIN:
                best, best_ends = rho, [pair[:] for pair in ends]
        count += 1
        if count == judged:
            break
    return np.array(best_ends, dtype=np.int64)


def climb(chain: Chain, edges: Edges, random: np.random.Generator) -> Edges:
    """Batches of swaps, the best of many to first order, kept where they make rho smaller; else smaller batches."""
    n = chain.weights.size
    edges = _mixed_up(chain, edges, random)
    found = chain.leading(edges, 1e-4)
    batch, rounds = max(4, n // 50), max(1, 150_000 // max(n, 1000))
    for _ in range(rounds):
        if found is None:
            break
        changed = _best_swaps(chain, edges, found, batch, random)
        after = chain.leading(changed, 1e-4, found[1].sum(1)) if changed is not None else None
        if changed is not None and after is not None and _largest(after) < _largest(found) - MARGIN:
            edges, found, batch = changed, after, min(batch + batch // 3 + 1, n // 8)
        else:
            batch = max(1, batch // 2)
    return edges


def _best_swaps(
    chain: Chain, edges: Edges, found: tuple[Array, Array], batch: int, random: np.random.Generator
) -> Edges | None:
    """An edge is worth sum_k w_k lambda_i W_ij (x_ik - x_jk)^2, x = eigenvector / sqrt(lambda): by so much it lowers a
    soft maximum of |sigma| to first order. A swap gains two new edges and loses two old ones.
    """
    n, m = chain.weights.size, len(edges)
    values, vectors = found
    steep = np.sign(values) * (np.abs(values) / np.abs(values).max()) ** SHARPNESS
    kept = np.abs(steep) > 1e-3
    x, steep = vectors[:, kept] / chain.root[:, None], steep[kept]

    def worth(i: Index, j: Index) -> Array:
        return chain.flow(i, j) * (((x[i] - x[j]) ** 2) @ steep)

    first, second, (a, b), (c, d) = _proposals(edges, max(8000, 2 * m), random)
    if not first.size:
        return None  # a star: no two edges with four ends
    now = worth(edges[:, 0], edges[:, 1])
    gain = worth(a, c) + worth(b, d) - now[first] - now[second]
    gain = np.round(gain / max(float(np.abs(gain).max()), 1e-300), 9)  # equal ones are equal on every machine
    order = np.argsort(-gain, kind="stable")[: 20 * batch]
    taken: set[int] = set()
    keys = set(_keys(edges, n).tolist())
    changed = edges.copy()
    for k in order[gain[order] > 0].tolist():
        four = {int(a[k]), int(b[k]), int(c[k]), int(d[k])}
        new = np.array([[a[k], c[k]], [b[k], d[k]]])
        if four & taken or keys & set(_keys(new, n).tolist()):
            continue
        taken |= four
        changed[first[k]], changed[second[k]] = new
        if len(taken) >= 4 * batch:
            break
    return changed if taken else None


def _mixed_up(chain: Chain, edges: Edges, random: np.random.Generator) -> Edges:
    """Random swaps all over the graph, where they help: Havel and Hakimi's graphs join like to like, which is slow."""
    n = chain.weights.size
    degrees = np.bincount(edges.ravel(), minlength=n)
    changed = edges
    for _ in range(10):
        order = random.permutation(len(changed))
        first, second = order[: len(order) // 2], order[len(order) // 2 : 2 * (len(order) // 2)]
        (a, b), (c, d) = changed[first].T, changed[second].T
        new = _keys(np.concatenate([np.stack([a, c], 1), np.stack([b, d], 1)]), n)
        _, index, count = np.unique(np.concatenate([_keys(changed, n), new]), return_inverse=True, return_counts=True)
        single = (count[index] == 1)[len(changed) :].reshape(2, -1).all(0)
        leaves = ((degrees[a] == 1) & (degrees[c] == 1)) | ((degrees[b] == 1) & (degrees[d] == 1))
        fine = single & ~leaves & (a != c) & (b != d) & (a != d) & (b != c)
        changed = changed.copy()
        changed[first[fine]] = np.stack([a, c], 1)[fine]
        changed[second[fine]] = np.stack([b, d], 1)[fine]
    changed = joined_up(changed, n, random)
    return changed if chain.rho(changed) < chain.rho(edges) - MARGIN else edges


def joined_up(edges: Edges, n: int, random: np.random.Generator, rounds: int = 100) -> Edges:
    """Every smaller component swaps an edge with one of the largest component; again until one is left, or in vain."""
    edges = edges.copy()
    for _ in range(rounds):
        ones = np.ones(len(edges))
        pieces, piece = connected_components(scipy.sparse.coo_array((ones, edges.T), shape=(n, n)), directed=False)
        if pieces == 1:
            break
        where = piece[edges[:, 0]]
        largest = int(np.bincount(where, minlength=pieces).argmax())
        inside = np.flatnonzero(where == largest)
        others, outside = np.unique(where, return_index=True)
        outside = outside[others != largest][: len(inside)]
        chosen = random.choice(inside, size=len(outside), replace=False)
        (a, b), (c, d) = edges[chosen].T, edges[outside].T
        # the ends lie in different components, so neither edge is there already
        edges[chosen], edges[outside] = np.stack([a, c], 1), np.stack([b, d], 1)
    return edges


def _pairs(m: int, most: int, random: np.random.Generator) -> Iterator[tuple[int, int, bool]]:
    """Two random edges and which way round the second is taken."""
    for _ in range(0, most, 4096):
        pairs, flips = random.integers(m, size=(4096, 2)), random.random(4096) < 0.5
        for (first, second), flip in zip(pairs.tolist(), flips.tolist(), strict=True):
            yield first, second, flip


def _proposals(edges: Edges, count: int, random: np.random.Generator) -> tuple[Index, Index, Edges, Edges]:
    """Numbers of pairs of random edges, and their ends (a, b) and (c, d), four different nodes."""
    first, second = random.integers(len(edges), size=(2, count))
    (a, b), (c, d) = edges[first].T, edges[second].T
    flip = random.random(count) < 0.5
    c, d = np.where(flip, d, c), np.where(flip, c, d)
    fine = (a != c) & (a != d) & (b != c) & (b != d)
    return first[fine], second[fine], np.stack([a, b])[:, fine], np.stack([c, d])[:, fine]


def _keys(edges: Edges, n: int) -> Index:
    """One number per edge, the same whichever way round."""
    return edges.min(1) * n + edges.max(1)


def _rho(S: Array) -> float:
    values = np.linalg.eigvalsh(S)
    return max(-float(values[0]), float(values[-1]))


def _largest(found: tuple[Array, Array]) -> float:
    return float(np.abs(found[0]).max())
