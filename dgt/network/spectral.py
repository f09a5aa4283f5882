"""Eigenvalues of a mixing matrix that decide how quickly a network agrees, at 2 or at 100,000 nodes.

found = spectrum(graph, weights)       # sigma_2 and sigma_n; found.rho is rho_Lambda, and rho_J with uniform weights
spectral_gap(graph, weights)           # 1 - rho

S = D^1/2 W D^-1/2 with D = diag(lambda) is symmetric by detailed balance and has the eigenvalues of W. All of them up
to `DENSE` nodes; above, Lanczos for the two that count, or shift-invert where a factor of I - S stays small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from scipy.sparse.csgraph import reverse_cuthill_mckee

from dgt.errors import ConfigError
from dgt.network.mixing import mixing_matrix
from dgt.network.weights import Weights

Vector = npt.NDArray[np.float64]
Apply = Callable[[Vector], Vector]

DENSE = 1000
"""Nodes up to which all eigenvalues are computed at once."""
FEW_PRODUCTS, MOST_PRODUCTS = 1000, 10_000
"""Products S v that Lanczos may use: enough for random graphs, and when nothing else is left."""
MOST_FACTOR_WORK = 5e10
"""Operations to factor I - S, by a bound known beforehand; above, no shift-invert."""
CLOSE = 1e-6  # of the gap; an eigenvalue is certain to be that near, and in practice agrees to twice the digits
SHIFT = 1e-10  # I - S is singular along sqrt(lambda); this much is added to it
LOOK_EVERY = 25


@dataclass(frozen=True, slots=True)
class Spectrum:
    """1 = sigma_1 > sigma_2 >= ... >= sigma_n > -1 of W, as far as they count."""

    second: float
    """sigma_2."""
    last: float
    """sigma_n."""
    exact: bool = True
    """False where the work allowed was used up: then rho is at least what it says, and the gap at most."""

    @property
    def rho(self) -> float:
        """max(|sigma_2|, |sigma_n|): ||W - Lambda||_lambda, by which one exchange brings the nodes closer."""
        return max(abs(self.second), abs(self.last))

    @property
    def gap(self) -> float:
        """1 - rho."""
        return 1.0 - self.rho


def spectrum(graph: nx.Graph, weights: Weights, laziness: float = 0.3) -> Spectrum:
    """sigma_2 and sigma_n of the Metropolis-Hastings W of a graph and weights."""
    return spectrum_of(mixing_matrix(graph, weights, laziness), weights)


def spectral_gap(graph: nx.Graph, weights: Weights, laziness: float = 0.3) -> float:
    """1 - max(|sigma_2|, |sigma_n|) of W; 1 for a single node."""
    found = spectrum(graph, weights, laziness)
    if not found.exact:
        raise ConfigError(
            f"spectral gap of {weights.size} nodes: at most {found.gap:.3g}; the work allowed did not suffice for more"
        )
    return found.gap


def spectrum_of(W: scipy.sparse.csr_array, weights: Weights) -> Spectrum:
    """sigma_2 and sigma_n of any W in detailed balance with lambda: lambda_i W_ij = lambda_j W_ji."""
    n = int(weights.size)
    if n == 1:
        return Spectrum(0.0, 0.0)
    S = symmetrised(W, weights)
    if n <= DENSE:
        eigenvalues = scipy.linalg.eigvalsh(S.toarray())
        return Spectrum(float(eigenvalues[-2]), float(eigenvalues[0]))
    return _sparse(S, np.sqrt(weights / n))


def symmetrised(W: scipy.sparse.csr_array, weights: Weights) -> scipy.sparse.csr_array:
    """S = D^1/2 W D^-1/2."""
    root = np.sqrt(weights)
    return scipy.sparse.csr_array(scipy.sparse.diags_array(root) @ W @ scipy.sparse.diags_array(1 / root))


@dataclass(frozen=True, slots=True)
class Ends:
    """Ritz values at both ends of a symmetric operator: within the spectrum, and an eigenvalue lies within `_error`."""

    low: float
    low_error: float
    high: float
    high_error: float


def _sparse(S: scipy.sparse.csr_array, top: Vector) -> Spectrum:
    """`top` is the eigenvector of sigma_1 = 1, of length one.

    Lanczos is quick on random graphs and hopeless on rings; a factor is quick on rings and fills up on random graphs.
    """
    cheap = _factor_work(S) <= MOST_FACTOR_WORK
    floor = 2 * float(S.diagonal().min()) - 1  # Gershgorin: no eigenvalue is below

    def second_is_close(ends: Ends) -> bool:
        return ends.high_error <= CLOSE * (1 - ends.high)

    def last_is_close(ends: Ends) -> bool:
        return ends.low_error <= CLOSE

    ends = _lanczos(
        lambda v: S @ v, top, FEW_PRODUCTS if cheap else MOST_PRODUCTS,
        lambda ends: second_is_close(ends) and (last_is_close(ends) or -floor < ends.high),
    )  # fmt: skip
    second, second_sure = ends.high, second_is_close(ends)
    last, last_sure = ends.low, last_is_close(ends)
    if not second_sure and cheap:
        second, second_sure = _inverted_second(S, top)
    if not last_sure and cheap:
        last, last_sure = _inverted_last(S, floor)
    # sigma_n counts in rho only where it may be the larger one
    return Spectrum(second, last, exact=second_sure and (last_sure or -floor <= abs(second)))


def _lanczos(apply: Apply, top: Vector, products: int, enough: Callable[[Ends], bool]) -> Ends:
    """Both ends of a symmetric operator off its eigenvector `top`.

    Without restarts and without keeping the vectors: extreme Ritz values do not suffer from it, and it takes a fifth of
    the time of a library's restarted method at 20,000 nodes.
    """
    v = np.random.default_rng(0).standard_normal(top.size)
    v -= (top @ v) * top
    v /= np.linalg.norm(v)
    before, beta = np.zeros_like(v), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        image = apply(v) - beta * before
        alpha = float(image @ v)
        image -= alpha * v
        image -= (top @ image) * top
        beta = float(np.linalg.norm(image))
        diagonal.append(alpha)
        ended = beta < 1e-14 * max(map(abs, (alpha, *beside[-1:]))) or len(diagonal) >= products
        if ended or len(diagonal) % LOOK_EVERY == 0:
            ends = _ritz_ends(np.array(diagonal), np.array(beside), beta)
            if ended or enough(ends):
                return ends
        beside.append(beta)
        before, v = v, image / beta


def _ritz_ends(diagonal: Vector, beside: Vector, beta: float) -> Ends:
    """Extreme eigenvalues of the tridiagonal matrix; beta |last entry of the eigenvector| is the residual."""
    found = []
    for k in (0, diagonal.size - 1):
        value, vector = scipy.linalg.eigh_tridiagonal(diagonal, beside, select="i", select_range=(k, k))
        found += [float(value[0]), beta * abs(float(vector[-1, 0]))]
    return Ends(*found)


def _inverted_second(S: scipy.sparse.csr_array, top: Vector) -> tuple[float, bool]:
    """1/(1 - sigma_2) is the largest eigenvalue of (I - S)^-1 off `top`, and stands far off from the others."""
    value, sure = _largest(_factor((1 + SHIFT) * scipy.sparse.eye_array(top.size) - S), top)
    return 1 + SHIFT - 1 / value, sure


def _inverted_last(S: scipy.sparse.csr_array, floor: float) -> tuple[float, bool]:
    """The same at the other end: S - (floor - 1e-6) I is positive definite."""
    n, below = S.shape[0], floor - 1e-6
    value, sure = _largest(_factor(S - below * scipy.sparse.eye_array(n)), np.zeros(n))
    return below + 1 / value, sure


def _largest(apply: Apply, top: Vector) -> tuple[float, bool]:
    ends = _lanczos(apply, top, FEW_PRODUCTS // 4, lambda ends: ends.high_error <= 1e-9 * ends.high)
    return ends.high, ends.high_error <= CLOSE * ends.high


def _factor(matrix: scipy.sparse.sparray) -> Apply:
    solve: Apply = scipy.sparse.linalg.splu(
        scipy.sparse.csc_array(matrix),
        permc_spec="MMD_AT_PLUS_A",
        options={"SymmetricMode": True},
        diag_pivot_thresh=0.0,
    ).solve
    return solve


def _factor_work(S: scipy.sparse.csr_array) -> float:
    """At most n bandwidth^2, and on graphs that are nearly trees n + (edges more than a tree has)^3."""
    n = S.shape[0]
    place = np.empty(n, dtype=np.int64)
    place[reverse_cuthill_mckee(S, symmetric_mode=True)] = np.arange(n)
    entries = S.tocoo()
    band = float(np.abs(place[entries.row] - place[entries.col]).max())
    spare = float((S.nnz - n) // 2 - (n - 1))
    return min(n * band**2, n + spare**3)
