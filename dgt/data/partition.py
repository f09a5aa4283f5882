"""Which node holds which samples: every sample in exactly one shard, the same on every rank for the same seed.

sizes = shard_sizes(50000, weights)                    # largest remainders
shards = dirichlet_shards(labels, sizes, beta, seed)   # a list of index arrays, one per node
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dgt.errors import ConfigError

Indices = npt.NDArray[np.int64]
Shares = Sequence[float] | npt.NDArray[np.float64]


def largest_remainders(total: int, shares: Shares) -> Indices:
    """Whole numbers of sum `total` in proportion to `shares`: round down, then one more to the largest remainders."""
    exact = np.asarray(shares, dtype=np.float64) * (total / np.sum(shares))
    counts = np.floor(exact).astype(np.int64)
    short = total - int(counts.sum())
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[:short]] += 1
    return counts


def shard_sizes(total: int, weights: Shares, shares: Shares | None = None) -> Indices:
    """Samples of each node, in proportion to `shares` if given, else to the weights; every node needs at least one."""
    if shares is not None and len(shares) != len(weights):
        raise ConfigError(f"problem.sizes: {len(shares)} numbers for {len(weights)} nodes; give one per node")
    counts = largest_remainders(total, weights if shares is None else shares)
    if (counts == 0).any():
        node = int(np.flatnonzero(counts == 0)[0])
        way_out = "use fewer nodes, larger shares or a larger problem.beta"
        raise ConfigError(f"partition: node {node} would get none of the {total} samples; {way_out}")
    return counts


def iid_shards(sizes: Indices, seed: int) -> list[Indices]:
    """A random partition into shards of the given sizes."""
    order = np.random.default_rng([seed, 0]).permutation(int(sizes.sum()))
    return [np.sort(shard) for shard in np.split(order, np.cumsum(sizes)[:-1])]


def dirichlet_shards(labels: npt.NDArray[Any], sizes: Indices, beta: float, seed: int) -> list[Indices]:
    """Shards of the given sizes whose label shares are drawn from Dirichlet(beta): small beta, few labels each.

    Node i draws q_i ~ Dirichlet(beta, ..., beta); the table sizes_i q_ik is then scaled by turns to the right row
    and column sums (Sinkhorn), so that sizes and class counts both hold exactly.
    """
    generator = np.random.default_rng([seed, 1])
    classes, counts = np.unique(labels, return_counts=True)
    draws = generator.gamma(beta, size=(len(sizes), len(classes))) + 1e-9  # Dirichlet, before it is divided by its sum
    table = draws / draws.sum(1, keepdims=True) * sizes[:, None]
    for _ in range(200):
        table *= counts / table.sum(0)
        table *= (sizes / table.sum(1))[:, None]
    return _deal(labels, classes, rounded(table, sizes, counts), generator)


def uneven_shares(nodes: int, classes: int, beta: float, seed: int) -> npt.NDArray[np.float64]:
    """Sizes as they come out when each class is dealt out over the nodes by a draw from Dirichlet(beta)."""
    draws = np.random.default_rng([seed, 2]).dirichlet([beta] * nodes, size=classes)
    return draws.sum(0)


def rounded(table: npt.NDArray[np.float64], rows: Indices, columns: Indices) -> Indices:
    """Whole numbers close to `table` with exactly these row and column sums: round down, then fill what is short."""
    whole = np.floor(table).astype(np.int64)
    # rounding down can leave a column too full where scaling has not converged: take from its largest cells
    for k in np.flatnonzero(whole.sum(0) > columns):
        while whole[:, k].sum() > columns[k]:
            whole[np.argmax(whole[:, k]), k] -= 1
    for i in np.flatnonzero(whole.sum(1) > rows):
        while whole[i].sum() > rows[i]:
            whole[i, np.argmax(whole[i])] -= 1
    row_short, column_short = rows - whole.sum(1), columns - whole.sum(0)
    for i, k in zip(*np.unravel_index(np.argsort(whole - table, axis=None, kind="stable"), table.shape), strict=True):
        if row_short[i] and column_short[k]:
            whole[i, k] += 1
            row_short[i] -= 1
            column_short[k] -= 1
    for i in np.flatnonzero(row_short):
        for k in np.flatnonzero(column_short):
            more = min(row_short[i], column_short[k])
            whole[i, k] += more
            row_short[i] -= more
            column_short[k] -= more
    return whole


def _deal(
    labels: npt.NDArray[Any], classes: npt.NDArray[Any], table: Indices, generator: np.random.Generator
) -> list[Indices]:
    """Samples to nodes, table[i, k] of class k to node i."""
    shards: list[list[Indices]] = [[] for _ in table]
    for k, label in enumerate(classes):
        order = generator.permutation(np.flatnonzero(labels == label))
        for i, piece in enumerate(np.split(order, np.cumsum(table[:, k])[:-1])):
            shards[i].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in shards]
