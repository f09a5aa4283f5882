"""Noise-free least squares on schedules reach the weighted optimum, whatever the number of nodes."""

from __future__ import annotations

import numpy as np
import pytest

from dgt import reference
from dgt.network import schedules
from dgt.network.schedules import Schedule
from dgt.problems.least_squares import LeastSquares, LeastSquaresSettings

ITERATIONS, LR = 1400, 0.05


def weights_of(n: int) -> np.ndarray:
    drawn = np.random.default_rng(n).uniform(0.3, 2, n)
    return drawn * n / drawn.sum()


def distance(schedule: Schedule, strategy: str, momentum: float) -> float:
    """Of the furthest node from the optimum; lr falls to a third on the way."""
    n, weights = schedule.size, weights_of(schedule.size)
    problem = LeastSquares(LeastSquaresSettings(noise=0.0, dimension=4), [0], range(n))
    start = LR * (1 - momentum)
    *_, last = reference.states(
        "gradient_tracking", problem, schedule, weights, strategy, laziness=0.3,
        lr=lambda t: start if t < ITERATIONS // 3 else start / 3, iterations=ITERATIONS, momentum=momentum,
    )  # fmt: skip
    return float(np.abs(last.theta - problem.optimum(weights)).max())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("strategy", ["I", "II"])
@pytest.mark.parametrize("n", [2, 3, 5, 8, 13, 16, 33])
def test_gradient_tracking_is_exact(n: int, strategy: str, momentum: float) -> None:
    """Heavy ball on y in place of momentum inside the tracker is another algorithm where W changes."""
    assert distance(schedules.one_peer(weights_of(n)), strategy, momentum) <= 1e-10


@pytest.mark.parametrize("n", [6, 16])
def test_the_other_schedules_are_exact_too(n: int) -> None:
    weights = weights_of(n)
    others = [schedules.matching(n), schedules.one_peer_exponential(n), schedules.one_peer(weights, rounds=2)]
    assert max(distance(schedule, "II", 0.9) for schedule in others) <= 1e-10
