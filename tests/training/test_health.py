"""Alarms ring when they should, at any scale, and not for rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dgt.config import Config
from dgt.errors import AlarmError
from dgt.network import graphs, theory
from dgt.network.spectral import spectral_gap
from dgt.network.weights import named
from dgt.training.evaluation import Evaluation
from dgt.training.health import Health


def health(smoothness: float | None = 12.51, dtype: torch.dtype = torch.float64) -> Health:
    return Health(Config(lr=0.5), graphs.ring(16), named("A"), smoothness, dtype)


def measured(
    loss: float = 1.0, consensus: float = 0.1, norm: float = 1.0, tracking_scale: float | None = None, **more: float
) -> Evaluation:
    metrics = {name: np.array([value]) for name, value in {"loss": loss, "consensus": consensus, **more}.items()}
    scale = None if tracking_scale is None else np.array([tracking_scale])
    return Evaluation(metrics, {}, np.array([norm]), scale)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_the_residual_is_judged_by_the_size_of_what_is_tracked(scale: float) -> None:
    looking, rounding = health(), 2e-16 * scale
    for iteration in range(1, 2000, 100):
        looking.check(iteration, measured(tracking_residual=rounding * iteration**0.5, tracking_scale=scale))
    assert looking.sound_until == 1901
    with pytest.raises(
        AlarmError, match=r"trackers no longer track at iteration 2000: residual .* lost its last gradient"
    ):
        looking.check(2000, measured(tracking_residual=1e-6 * scale, tracking_scale=scale))
    assert looking.sound_until == 1901


def test_trackers_that_have_become_small_are_judged_by_what_they_were() -> None:
    looking = health()
    looking.check(3, measured(tracking_residual=0.0, tracking_scale=10.0))
    looking.check(300, measured(tracking_residual=1e-14, tracking_scale=1e-9))


def test_single_precision_is_given_more_room() -> None:
    metrics = {"tracking_residual": 1e-5, "tracking_scale": 1.0}
    health(dtype=torch.float32).check(100, measured(**metrics))
    with pytest.raises(AlarmError):
        health().check(100, measured(**metrics))


def test_nodes_that_drift_apart_and_losses_that_explode() -> None:
    looking = health()
    looking.check(0, measured(loss=3.0, consensus=2.0))
    looking.check(3, measured(loss=300.0, consensus=20.0))
    with pytest.raises(AlarmError, match=r"nodes are drifting apart at iteration 6: consensus 500, .* own size 1"):
        looking.check(6, measured(consensus=500.0))
    with pytest.raises(
        AlarmError, match=r"loss is 1e\+05 at iteration 9, it was 3: lr=0.5 is too large .* 1/beta = 0.0799"
    ):
        looking.check(9, measured(loss=1e5))
    with pytest.raises(AlarmError, match=r"loss is not finite at iteration 9.* beta the largest curvature"):
        health(smoothness=None).check(9, measured(loss=float("nan")))


def test_the_step_size_of_theory() -> None:
    weights, graph = named("A"), graphs.ring(16)
    for name, spread in (("I", float(weights.max())), ("II", 1.0)):
        rho = 1 - spectral_gap(graph, np.ones(16) if name == "I" else weights, 0.3)
        expected = (3 * (1 - rho) / (2 - rho)) ** 0.5 / (9 * 12.51 * spread)
        assert theory.largest_step(graph, weights, name, 0.3, 12.51) == pytest.approx(expected, rel=1e-12)
