"""How quickly a linear system (`network/systems/`) converges without noise, and up to which step it does.

Small networks: eigenvalues of the product of M_t over a period. Larger ones: growth of a random vector under M^T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse

from dgt.network.systems.base import Array, System, Vectors
from dgt.network.weights import Weights

EXACT_NODES = 200  # up to here the contraction is an eigenvalue, above a growth rate
REFINED_NODES = 32  # up to here eigenvalues have the last word on the stable step
MOST_MOVES = 30  # from a step that was found by growth, up or down
GROWTH_STEPS = 300
LOOK_EVERY = 10  # steps
STEPS_TRIED = (16, 8, 8)  # step sizes tried side by side, closer and closer
AT_FIRST = 40  # on schedules, some of which are stable again above steps at which they are not
SMALLEST_SHARE = 1e-5  # of the first step tried: below it a system counts as never stable


def contraction(system: System, curvature: Array, lr: float) -> float:
    """Spectral radius of M without its invariant direction: error per iteration, in the long run and without noise.

    `curvature` is one draw, [nodes]. Of a period of several steps it is the mean per step.
    """
    n, columns = curvature.size, curvature[:, None]
    if n > EXACT_NODES:
        return float(_growth(system, columns, np.array([lr]), 4 * GROWTH_STEPS)[0])
    size = system.rate_parts * n
    parts: list[Array] = list(np.split(np.eye(size), system.rate_parts))
    r: Vectors = (*parts, *[np.zeros((n, size))] * (system.parts - system.rate_parts))
    for step in reversed(range(system.mixing.period)):
        r, _ = system.back(r, np.repeat(columns, size, axis=1), lr, step)
    M = np.concatenate(r)[:size].T
    invariant = system.invariant(columns, lr)
    if invariant is not None:  # shifts its eigenvalue 1 to 0
        left, right = (np.concatenate(vector)[:size, 0] for vector in invariant)
        M = M - np.outer(right, left) / (left @ right)
    if not np.isfinite(M).all():
        return math.inf
    return float(np.abs(np.linalg.eigvals(M)).max()) ** (1 / system.mixing.period)


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
    if curvature.shape[0] <= REFINED_NODES:
        step = _by_eigenvalues(system, curvature[:, hardest], step)
        for draw in range(draws):
            if contraction(system, curvature[:, draw], step) >= 1:
                hardest, step = draw, _by_eigenvalues(system, curvature[:, draw], step)
    return step, hardest


def _by_eigenvalues(system: System, curvature: Array, near: float) -> float:
    """The limit next to a step that was found by growth, which does not see modes that hardly grow or shrink.

    There are such modes with local steps, and on graphs that mix slowly.
    """
    low, high = near, near
    is_stable = contraction(system, curvature, near) < 1
    for _ in range(MOST_MOVES):
        low, high = (high, 1.03 * high) if is_stable else (0.7 * low, low)
        if (contraction(system, curvature, high if is_stable else low) < 1) != is_stable:
            break
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if contraction(system, curvature, middle) < 1 else (low, middle)
    return low


def _stable_step(system: System, curvature: Array) -> float:
    """Of one draw, [nodes], from below."""
    pulls = system.plan.gradient_scale * curvature
    b = system.momentum
    low, high = 0.1 * (1 - b) / float(pulls.max()), 4.0 * (1 + b) / float(system.plan.average_weights @ pulls)
    least = SMALLEST_SHARE * low
    first = AT_FIRST if system.mixing.period > 1 else STEPS_TRIED[0]
    for tried in (first, *STEPS_TRIED[1:]):
        low, high = _between(system, curvature[:, None], low, high, tried, least)
    return 0.99 * float(low)


def _between(system: System, columns: Array, low: float, high: float, tried: int, least: float) -> tuple[float, float]:
    """The largest of some steps that is stable, and the next one; from lower ones if none is."""
    while True:
        steps = np.geomspace(low, high, tried)
        stable = _growth(system, columns, steps, GROWTH_STEPS) < 1
        first = int(np.argmin(stable)) if not stable.all() else tried - 1
        if first:
            return steps[first - 1], steps[first]
        if low < least:
            return 0.1 * low, low
        low, high = 0.1 * low, low


def _growth(system: System, curvature: Array, lr: Array, steps: int) -> Array:
    """(|r_steps| / |r_steps/2|)^(2/steps) under M^T, for several step sizes at once, of one draw or a draw each.

    Half of the steps are whole periods.
    """
    period = system.mixing.period
    half = period * math.ceil(steps / 2 / period)
    columns = np.broadcast_to(curvature, (len(curvature), lr.size))
    random = np.random.default_rng(0).standard_normal((system.rate_parts, len(curvature), 1))
    if system.momentum:
        random[-1] = 0.0
    r: list[Array] = [np.repeat(part, lr.size, axis=1) for part in random]
    nothing = [np.zeros_like(r[0])] * (system.parts - system.rate_parts)
    invariant = system.invariant(columns, lr)
    grown = np.zeros(lr.size)
    for t in range(2 * half + 1):
        if t % LOOK_EVERY == 0 or t in (half, 2 * half):
            if invariant is not None:
                r = _without(r, *invariant)  # rounding brings it back
            length = np.sqrt(sum((part**2).sum(0) for part in r))
            grown += np.log(length) if t > half else 0.0
            r = [part / length for part in r]  # of length one: else it may underflow
        back, _ = system.back((*r, *nothing), columns, lr, -1 - t)
        r = list(back[: system.rate_parts])
    return np.exp(grown / half)


def _without(r: Sequence[Array], left: Vectors, right: Vectors) -> list[Array]:
    """r - l (v^T r) / (v^T l)."""
    pairs = list(zip(r, left, right, strict=False))
    share = sum((v * part).sum(0) for part, _, v in pairs) / sum((v * of_left).sum(0) for _, of_left, v in pairs)
    return [part - share * of_left for part, of_left, _ in pairs]


def mixing_rate(matrices: Sequence[scipy.sparse.csr_array], average_weights: Weights) -> float:
    """By which a step brings nodes closer, in the long run: spectral radius of W_P ... W_1 - 1 pi^T, per factor."""
    n = average_weights.size
    if n <= EXACT_NODES:
        product = np.eye(n)
        for W in matrices:
            product = W @ product
        radius = float(np.abs(np.linalg.eigvals(product - average_weights)).max())
        return radius ** (1 / len(matrices))
    v = np.random.default_rng(0).standard_normal(n)
    rounds = math.ceil(GROWTH_STEPS / 2 / len(matrices))
    grown = 0.0
    for number in range(2 * rounds):
        for W in matrices:
            v = W @ v
            v -= average_weights @ v
            length = float(np.linalg.norm(v))
            if length == 0:
                return 0.0
            grown += math.log(length) if number >= rounds else 0.0
            v /= length
    return math.exp(grown / rounds / len(matrices))
