"""What `dgt plan` weighs: predictions of runs on quadratics, how far apart two of them are, and what exchanges cost.

The systems are in `network/systems/`, their moments in `network/moments.py`, steps and rates in `network/stability.py`.
Nothing is sampled: what is left to chance is only which problem is drawn (h, b and the start).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dgt.network.moments import expected_consensus, expected_norms, few_phases
from dgt.network.systems.base import Array, Quadratic, System
from dgt.network.weights import Weights

Item = TypeVar("Item")

FEW_DRAWS = 2  # where an estimate suffices
SOME_NODES, MANY_NODES = 128, 1000
PROBES = 16  # random vectors that stand for all nodes of a network too large to take one by one
ROUNDING = 1e-13  # of the start: below it there is only rounding
TIE = 0.01  # relative difference up to which two predictions are the same


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
        return self.below(share * self.start)

    def below(self, level: float) -> int | None:
        """The first of the times at which the gradient norm is at most this."""
        return self._first(self.norms.mean(1) <= level)

    def agreed(self, share: float) -> int | None:
        """The first of the times at which gradient norm and consensus error both are."""
        consensus = self.consensus.mean(1)
        return self._first((self.norms.mean(1) <= share * self.start) & (consensus <= share * consensus[0]))

    def _first(self, there: npt.NDArray[np.bool_]) -> int | None:
        return self.times[int(np.argmax(there))] if there.any() else None


def predict(system: System, weights: Weights, quadratic: Quadratic, lr: float, times: Sequence[int]) -> Prediction:
    """What to expect of a run that is evaluated at these iterations, or at some of them where a period is long."""
    times = few_phases(times, system.mixing.period, system.mixing.local_steps)
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


def summed(quadratic: Quadratic, weights: Weights) -> Quadratic:
    """1/n sum_i lambda_i F_i on a single node, from the weighted mean of the starts: what centralised SGD descends."""
    shares = weights / weights.size
    parts = (quadratic.curvature, quadratic.pull, quadratic.start)
    curvature, pull, start = (np.tensordot(shares, part, 1)[None] for part in parts)
    return Quadratic(curvature, pull, start, quadratic.noise * float(np.linalg.norm(shares)))


def ranked(items: Sequence[Item], value: Callable[[Item], float], cost: Callable[[Item], Any]) -> list[Item]:
    """By value, lowest first; of those as good as the best that is left (`TIE`), the one of lowest cost comes next."""
    left, order = sorted(items, key=value), []
    while left:
        best = value(left[0])
        equals = [item for item in left if value(item) <= (1 + TIE) * best]
        chosen = min(equals, key=cost)  # the first of several: of lower value
        left = [item for item in left if item is not chosen]
        order.append(chosen)
    return order
