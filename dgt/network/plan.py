"""Which strategy on which graph: what gradient tracking does to a quadratic, in expectation over its gradient noise.

With gradients g_i = h_i theta - b_i + sigma xi_{i,t}, and u_t = y_t - sigma G xi_t in place of the tracker, a run is a
linear system driven by white noise, the same for every coordinate, x_t = (theta_t - theta*, u_t):

    x_{t+1} = M x_t + N xi_t,   M = [W, -a W; G H (W - I), W - a G H W],   N = sigma [-a W G; (W - I) G - a G H W G]

The tracking invariant makes the weighted gradient 1/n sum_i lambda_i grad F_i(theta_i) = pi^T u_t =: q_t, so that its
mean and variance need one backward trajectory r_t = (M^T)^t (0, pi), whatever the number of coordinates:

    p' = W^T (p + G H s) - G H s,   s' = W^T (s - a (p + G H s)),   r = (p, s)
    E q_t = r_t^T x_0,   Var q_t = sigma^2 sum_{k<t} |G (s_{k+1} - s_k)|^2

Momentum b tracks d_t = c g_t + e m_{t-1} in place of g_t, with m_t = b m_{t-1} + g_t and (c, e) = (1, b), or with
Nesterov (1 + b, b^2). Then u_t = y_t - c sigma G xi_t, x_t = (theta_t - theta*, u_t, m_{t-1} - m*), r = (p, s, m):

    p' = W^T (p + c G H s) - c G H s + H (e G s + m),   s' = W^T (s - a (p + c G H s)),   m' = b m - e (1 - b) G s
    q_t = pi^T G H (theta_t - theta*),   Var q_t = sigma^2 sum_{k<t} |c G (s_{k+1} - s_k) + e G s_k + m_k|^2

Nothing is sampled: what is left to chance is only which problem is drawn (h, b and the start).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy.sparse
import scipy.special

from dgt.network.mixing import Strategy, mixing_matrix, strategy
from dgt.network.weights import Weights

Array = npt.NDArray[np.float64]
Vectors = tuple[Array, Array, Array]  # parts of theta, of the tracker, of the momentum: zeros where there is none
Item = TypeVar("Item")

EXACT_NODES = 200  # up to here the contraction is an eigenvalue, above a growth rate
GROWTH_STEPS = 300
FEW_DRAWS = 2  # where an estimate suffices
SOME_NODES, MANY_NODES = 128, 1000
PROBES = 16  # random vectors that stand for all nodes of a network too large to take one by one
STEPS_TRIED = (16, 8, 8)  # step sizes tried side by side, closer and closer
ROUNDING = 1e-13  # of the start: below it there is only rounding
TIE = 0.01  # relative difference up to which two predictions are the same
FAR = 200.0  # squared mean in units of the variance, from which on the mean alone decides


@dataclass(frozen=True, slots=True)
class Quadratic:
    """F_i(theta) = 1/2 h_i |theta|^2 - b_i^T theta, drawn several times."""

    curvature: Array  # [nodes, draws], h_i
    pull: Array  # [nodes, draws, dimension], b_i
    start: Array  # [nodes, draws, dimension]
    noise: float

    def first(self, draws: int) -> Quadratic:
        """Some of the draws."""
        return Quadratic(self.curvature[:, :draws], self.pull[:, :draws], self.start[:, :draws], self.noise)

    def optimum(self, weights: Weights) -> Array:
        """theta* = sum lambda_i b_i / sum lambda_i h_i, [draws, dimension]."""
        return np.tensordot(weights, self.pull, 1) / (weights @ self.curvature)[:, None]


@dataclass(frozen=True, slots=True)
class System:
    """One strategy on one graph: all that M is made of but the curvatures and the step."""

    plan: Strategy
    W: scipy.sparse.csr_array
    backwards: scipy.sparse.csr_array  # W^T
    momentum: float = 0.0
    nesterov: bool = False

    @classmethod
    def of(
        cls,
        graph: nx.Graph,
        weights: Weights,
        name: str,
        laziness: float,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> System:
        plan = strategy(name, weights)
        W = mixing_matrix(graph, plan.mixing_weights, laziness)
        return cls(plan, W, W.T.tocsr(), momentum, nesterov)

    @property
    def of_direction(self) -> tuple[float, float]:
        """(c, e) of d_t = c g_t + e m_{t-1}."""
        b = self.momentum
        return (1 + b, b * b) if self.nesterov else (1.0, b)

    def back(self, r: Vectors, curvature: Array, lr: float | Array) -> Vectors:
        """r' = M^T r, one column per draw; `lr` may have one entry per column."""
        p, s, m = r
        c, e = self.of_direction
        G = self.plan.gradient_scale[:, None]
        pulled = c * G * curvature * s
        direction = p + pulled
        mixed = self.backwards @ np.concatenate([direction, s - lr * direction], axis=1)
        columns = p.shape[1]
        p, s_before, s = mixed[:, :columns] - pulled, s, mixed[:, columns:]
        if self.momentum:
            p = p + curvature * (e * G * s_before + m)
            m = self.momentum * m - e * (1 - self.momentum) * G * s_before
        return p, s, m

    def noise_gain(self, before: Vectors, after: Vectors) -> Array:
        """N^T r / sigma of r and the r' that follows."""
        (_, s, m), (_, s_after, _) = before, after
        c, e = self.of_direction
        G = self.plan.gradient_scale[:, None]
        return c * G * (s_after - s) + (e * G * s + m if self.momentum else 0.0)

    def invariant(self, curvature: Array) -> Vectors:
        """l = (-c G H pi, pi, -e G pi), l^T M = l^T: what x_0 and the noise have no part of."""
        pi = np.repeat(self.plan.average_weights[:, None], curvature.shape[1], axis=1)
        c, e = self.of_direction
        G = self.plan.gradient_scale[:, None]
        return -c * G * curvature * pi, pi, -e * G * pi


def expected_norms(system: System, weights: Weights, quadratic: Quadratic, lr: float, times: Sequence[int]) -> Array:
    """E |1/n sum_i lambda_i grad F_i(theta_i)| at these iterations: [times, draws]; inf once it overflows."""
    n, draws, dimension = quadratic.pull.shape
    share = (system.plan.average_weights * system.plan.gradient_scale)[:, None] * quadratic.curvature
    nothing = np.zeros((n, draws, 1))
    r = share[..., None], nothing, nothing
    with np.errstate(all="ignore"):
        moments = _moments(system, weights, quadratic, lr, times, r)
        norms = [expected_norm((mean[:, 0] ** 2).sum(-1), variance[:, 0], dimension) for mean, variance in moments]
    return _or_infinite(np.array(norms))


def expected_consensus(
    system: System, weights: Weights, quadratic: Quadratic, lr: float, times: Sequence[int], probes: int
) -> Array:
    """sqrt(E 1/n sum_i lambda_i |theta_i - average|^2) at these iterations: [times, draws].

    E |C theta|^2 with C = diag(lambda/n)^1/2 (I - 1 pi^T) is the sum of E (e_k^T C theta)^2 over all nodes k. On large
    networks (`probes` > 0) it is estimated by the mean of E (z^T C theta)^2 over random signs z.
    """
    n, draws, dimension = quadratic.pull.shape
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (n, 1, probes)) if probes else np.eye(n)[:, None] * np.sqrt(n)
    rows = signs * np.sqrt(weights / n)[:, None, None]
    p = np.tile(rows - system.plan.average_weights[:, None, None] * rows.sum(0), (1, draws, 1))
    with np.errstate(all="ignore"):
        moments = _moments(system, weights, quadratic, lr, times, (p, np.zeros_like(p), np.zeros_like(p)))
        squares = [(mean**2).sum(-1) + dimension * variance for mean, variance in moments]
        return _or_infinite(np.sqrt(np.array(squares).mean(-1)))


def _moments(
    system: System, weights: Weights, quadratic: Quadratic, lr: float, times: Sequence[int], r: Vectors
) -> Iterator[tuple[Array, Array]]:
    """Mean [draws, vectors, dimension] and variance [draws, vectors] of r^T x_t at these times, ascending.

    Each part of r is [nodes, draws, vectors]; r has no part of the invariant direction.
    """
    n, draws, vectors = r[0].shape
    optimum = quadratic.optimum(weights)
    c, _ = system.of_direction
    theta = quadratic.start - optimum
    u = (
        c
        * system.plan.gradient_scale[:, None, None]
        * (quadratic.curvature[..., None] * quadratic.start - quadratic.pull)
    )
    settled = (quadratic.curvature[..., None] * optimum - quadratic.pull) / (1 - system.momentum)  # m*
    x = np.ascontiguousarray(np.concatenate([theta, u, -settled]).transpose(1, 0, 2))  # [draws, 3 nodes, dimension]
    r = r[0].reshape(n, -1), r[1].reshape(n, -1), r[2].reshape(n, -1)
    curvature, variance = np.repeat(quadratic.curvature, vectors, axis=1), np.zeros(draws * vectors)
    wanted = set(times)
    for t in range(max(times) + 1):
        if t in wanted:
            rows = np.concatenate(r).reshape(3 * n, draws, vectors).transpose(1, 2, 0)
            yield np.matmul(rows, x), variance.reshape(draws, vectors)
        before, r = r, system.back(r, curvature, lr)
        variance = variance + quadratic.noise**2 * (system.noise_gain(before, r) ** 2).sum(0)


def _or_infinite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, np.inf)


def expected_norm(squared_mean: Array, variance: Array, dimension: int) -> Array:
    """E |z| for z ~ N(m, v I): sqrt(2 v) Gamma((d+1)/2) / Gamma(d/2) 1F1(-1/2; d/2; -|m|^2 / 2v)."""
    ratio = np.divide(squared_mean, variance, out=np.full_like(squared_mean, np.inf), where=variance > 0)
    near = np.minimum(ratio, FAR)
    gammas = np.exp(scipy.special.gammaln((dimension + 1) / 2) - scipy.special.gammaln(dimension / 2))
    exact = np.sqrt(2 * variance) * gammas * scipy.special.hyp1f1(-0.5, dimension / 2, -near / 2)
    return np.where(ratio < FAR, exact, np.sqrt(squared_mean + (dimension - 1) * variance))


@dataclass(frozen=True, slots=True)
class Prediction:
    """How the weighted gradient norm is expected to fall, and how nodes come to agree."""

    times: list[int]
    norms: Array  # [times, draws]
    consensus: Array  # [times, some of the draws]

    @property
    def start(self) -> float:
        return float(self.norms[0].mean())

    @property
    def errors(self) -> Array:
        """Of each draw, the mean over the last fifth of the iterations, as in summary.json."""
        return np.maximum(self._late(self.norms), ROUNDING * self.norms[0])

    @property
    def error(self) -> float:
        return float(self.errors.mean())

    @property
    def is_rounding(self) -> bool:
        """Whether nothing but rounding is left at the end."""
        return self.error <= 2 * ROUNDING * self.start

    @property
    def late_consensus(self) -> float:
        return float(self._late(self.consensus).mean())

    def _late(self, values: Array) -> Array:
        """Mean over the last fifth of the iterations, of each draw."""
        return values[np.array(self.times) >= 0.8 * self.times[-1]].mean(0)

    def reached(self, share: float) -> int | None:
        """The first of the times at which the gradient norm is at most this share of its start, if any."""
        return self._first(self.norms.mean(1) <= share * self.start)

    def agreed(self, share: float) -> int | None:
        """The first of the times at which gradient norm and consensus error both are."""
        consensus = self.consensus.mean(1)
        return self._first((self.norms.mean(1) <= share * self.start) & (consensus <= share * consensus[0]))

    def _first(self, there: npt.NDArray[np.bool_]) -> int | None:
        return self.times[int(np.argmax(there))] if there.any() else None


def predict(system: System, weights: Weights, quadratic: Quadratic, lr: float, times: Sequence[int]) -> Prediction:
    """What to expect of a run that is evaluated at these iterations."""
    norms = expected_norms(system, weights, quadratic, lr, times)
    probes = 0 if weights.size <= SOME_NODES else PROBES if weights.size <= MANY_NODES else PROBES // 4
    consensus = expected_consensus(system, weights, quadratic.first(FEW_DRAWS), lr, times, probes)
    return Prediction(list(times), norms, consensus)


@dataclass(frozen=True, slots=True)
class Advantage:
    """How much lower an error is than another, as a share of the larger one; below 0 if it is higher."""

    share: float
    uncertainty: float
    """Standard error of the share, by how the draws of the problem differ."""

    @property
    def is_clear(self) -> bool:
        """Whether it is more than chance and more than anybody would notice."""
        return abs(self.share) > max(TIE, self.uncertainty)


def advantage(one: Prediction, other: Prediction) -> Advantage:
    """Of `one` over `other`. Where both come down to rounding, the iterations this takes are compared instead."""
    if one.is_rounding and other.is_rounding:
        ours, theirs = (float(prediction.reached(2 * ROUNDING) or 0) for prediction in (one, other))
        return Advantage((theirs - ours) / max(ours, theirs, 1.0), 0.0)
    if not np.isfinite(one.error + other.error):
        return Advantage(float(np.isfinite(one.error)) - float(np.isfinite(other.error)), 0.0)
    differences = (other.errors - one.errors) / max(one.error, other.error)
    return Advantage(float(differences.mean()), float(differences.std() / np.sqrt(differences.size)))


def ranked(items: Sequence[Item], value: Callable[[Item], float], cost: Callable[[Item], float]) -> list[Item]:
    """By value, lowest first; of those as good as the best that is left (`TIE`), the one of lowest cost comes next."""
    left, order = sorted(items, key=value), []
    while left:
        best = value(left[0])
        equals = [item for item in left if value(item) <= (1 + TIE) * best]
        chosen = min(equals, key=cost)  # the first of several: of lower value
        left = [item for item in left if item is not chosen]
        order.append(chosen)
    return order


def iteration_seconds(compute: float, latency: float, sending: float, overlaps: bool) -> float:
    """z and then y travel, `latency` + `sending` seconds each; y while the next gradient is computed, if allowed."""
    travel = latency + sending
    return travel + max(compute, travel) if overlaps else compute + latency + 2 * sending


def contraction(system: System, curvature: Array, lr: float) -> float:
    """Spectral radius of M without its invariant direction: error per iteration, in the long run and without noise.

    `curvature` is one draw, [nodes]. Small networks: eigenvalues. Larger: growth of a random vector under M^T.
    """
    n = curvature.size
    if n > EXACT_NODES:
        return float(_growth(system, curvature[:, None], np.array([lr]), 4 * GROWTH_STEPS)[0])
    columns = np.eye(3 * n) if system.momentum else np.eye(3 * n)[:, : 2 * n]
    p, s, m = np.split(columns, 3)
    back = np.concatenate(system.back((p, s, m), np.repeat(curvature[:, None], columns.shape[1], axis=1), lr))
    M = back[: columns.shape[1]].T
    # shifts the eigenvalue 1 of the invariant direction, right (1, 0, 0) and left l, to 0
    left = np.concatenate([v[:, 0] for v in system.invariant(curvature[:, None])])[: len(M)]
    M[:n] -= left[None] / left[:n].sum()
    return float(np.abs(np.linalg.eigvals(M)).max())


def largest_stable_step(system: System, curvature: Array) -> tuple[float, int]:
    """Up to which step size M contracts for all draws, [nodes, draws], to about one percent; and the draw it is for."""
    draws = curvature.shape[1]
    step, hardest = _stable_step(system, curvature[:, 0]), 0
    for _ in range(draws - 1):
        growth = _growth(system, curvature, np.full(draws, step), GROWTH_STEPS)
        if growth.max() < 1:
            break
        hardest = int(np.argmax(growth))
        step = min(step, _stable_step(system, curvature[:, hardest]))
    return step, hardest


def _stable_step(system: System, curvature: Array) -> float:
    """Of one draw, [nodes], from below."""
    columns = curvature[:, None]
    pulls = system.plan.gradient_scale * curvature
    b = system.momentum
    low, high = 0.1 * (1 - b) / float(pulls.max()), 4.0 * (1 + b) / float(system.plan.average_weights @ pulls)
    for tried in STEPS_TRIED:
        steps = np.geomspace(low, high, tried)
        stable = _growth(system, columns, steps, GROWTH_STEPS) < 1
        first = int(np.argmin(stable))
        low, high = (steps[first - 1], steps[first]) if first else (0.1 * low, low)
    return 0.99 * float(low)


def _growth(system: System, curvature: Array, lr: Array, steps: int) -> Array:
    """(|r_steps| / |r_steps/2|)^(2/steps) under M^T, for several step sizes at once, of one draw or a draw each."""
    columns = np.broadcast_to(curvature, (len(curvature), lr.size))
    random = np.random.default_rng(0).standard_normal((2, len(curvature), 1))
    p, s = (np.repeat(half, lr.size, axis=1) for half in random)
    r, left = (p, s, np.zeros_like(p)), system.invariant(columns)
    grown = np.zeros(lr.size)
    for t in range(steps + 1):
        share = r[0].sum(0) / left[0].sum(0)  # rounding brings it back
        p, s, m = (part - share * of_left for part, of_left in zip(r, left, strict=True))
        length = np.sqrt((p**2).sum(0) + (s**2).sum(0) + (m**2).sum(0))
        grown += np.log(length) if t > steps // 2 else 0.0
        r = system.back((p / length, s / length, m / length), columns, lr)  # of length one: else it may underflow
    return np.exp(grown / (steps - steps // 2))
