"""Mean and variance of what matters of a linear system (`network/systems/`), without sampling anything.

r^T x_t needs one backward trajectory r_k = M_{t-k}^T r_{k-1}, whatever the number of coordinates:

    E r^T x_t = r_t^T x_0          Var r^T x_t = sum_{k<t} |N_{t-1-k}^T r_k|^2

Where M is the same at every step, one trajectory serves all times; where it repeats after P steps there is one for
every remainder of t by P, of which a few are enough where P is large (`few_phases`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.special

from dgt.network.systems.base import Array, Quadratic, System, Vectors
from dgt.network.weights import Weights

FAR = 200.0  # squared mean in units of the variance, from which on the mean alone decides
MOST_PHASES = 12  # remainders by the period at which a long one is looked at


def expected_norms(system: System, weights: Weights, quadratic: Quadratic, lr: float, times: Sequence[int]) -> Array:
    """E |1/n sum_i lambda_i grad F_i(theta_i)| at these iterations: [times, draws]; inf once it overflows."""
    dimension = quadratic.pull.shape[2]
    share = (system.plan.average_weights * system.plan.gradient_scale)[:, None] * quadratic.curvature

    def norm(mean: Array, variance: Array) -> Array:
        return expected_norm((mean[:, 0] ** 2).sum(-1), variance[:, 0], dimension)

    with np.errstate(all="ignore"):
        return _or_infinite(_over_time(system, weights, quadratic, lr, times, share[..., None], norm))


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

    def square(mean: Array, variance: Array) -> Array:
        squares: Array = (mean**2).sum(-1) + dimension * variance
        return squares.mean(-1)

    with np.errstate(all="ignore"):
        return _or_infinite(np.sqrt(_over_time(system, weights, quadratic, lr, times, p, square)))


def _over_time(
    system: System,
    weights: Weights,
    quadratic: Quadratic,
    lr: float,
    times: Sequence[int],
    p: Array,
    measured: Callable[[Array, Array], Array],
) -> Array:
    """measured(mean [draws, vectors, dimension], variance [draws, vectors]) of p^T (theta_t - theta*): [times, draws].

    p is [nodes, draws, vectors], and has no part of the invariant direction.
    """
    period = system.mixing.period
    found: dict[int, Array] = {}
    for phase in sorted({t % period for t in times}):
        found |= _trajectory(system, weights, quadratic, lr, {t for t in times if t % period == phase}, p, measured)
    return np.array([found[t] for t in times])


def _trajectory(
    system: System,
    weights: Weights,
    quadratic: Quadratic,
    lr: float,
    times: set[int],
    p: Array,
    measured: Callable[[Array, Array], Array],
) -> dict[int, Array]:
    """The same for times that leave one remainder by the period."""
    n, draws, vectors = p.shape
    last, found = max(times), {}
    x = np.ascontiguousarray(np.concatenate(system.start(quadratic, weights, lr)).transpose(1, 0, 2))
    columns = p.reshape(n, -1)
    r: Vectors = (columns, *[np.zeros_like(columns)] * (system.parts - 1))
    curvature, variance = np.repeat(quadratic.curvature, vectors, axis=1), np.zeros(draws * vectors)
    for k in range(last + 1):
        if k in times:
            rows = np.concatenate(r).reshape(-1, draws, vectors).transpose(1, 2, 0)
            found[k] = measured(np.matmul(rows, x), variance.reshape(draws, vectors))
        r, gain = system.back(r, curvature, lr, last - 1 - k)
        variance = variance + quadratic.noise**2 * (gain**2).sum(0)
    return found


def few_phases(times: Sequence[int], period: int, local_steps: int) -> list[int]:
    """Those of the times with a few remainders by the period; the first and the last are kept.

    Chosen are exchanges, spread over the period, with all steps up to each: nodes disagree more after local steps.
    """
    exchanges = sorted({t % period // local_steps for t in times})
    most = max(2, MOST_PHASES // local_steps)
    if len(exchanges) <= most:
        return list(times)
    chosen = {exchanges[k] for k in np.linspace(0, len(exchanges), most, endpoint=False).astype(int)}
    chosen.add(times[-1] % period // local_steps)
    return [t for t in times if t % period // local_steps in chosen]


def _or_infinite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, np.inf)


def expected_norm(squared_mean: Array, variance: Array, dimension: int) -> Array:
    """E |z| for z ~ N(m, v I): sqrt(2 v) Gamma((d+1)/2) / Gamma(d/2) 1F1(-1/2; d/2; -|m|^2 / 2v)."""
    ratio = np.divide(squared_mean, variance, out=np.full_like(squared_mean, np.inf), where=variance > 0)
    near = np.minimum(ratio, FAR)
    gammas = np.exp(scipy.special.gammaln((dimension + 1) / 2) - scipy.special.gammaln(dimension / 2))
    exact = np.sqrt(2 * variance) * gammas * scipy.special.hyp1f1(-0.5, dimension / 2, -near / 2)
    return np.where(ratio < FAR, exact, np.sqrt(squared_mean + (dimension - 1) * variance))
