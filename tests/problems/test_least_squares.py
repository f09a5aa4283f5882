import dataclasses

import numpy as np
import pytest
import scipy.stats
import torch

from dgt.network import weights
from dgt.problems import ProblemContext
from dgt.problems.least_squares import (
    CENTER,
    NOISE,
    LeastSquares,
    LeastSquaresProblem,
    LeastSquaresSettings,
    gaussians,
    uniforms,
)


def test_a_node_draws_the_same_alone_and_among_all() -> None:
    for sample in (gaussians, uniforms):
        everyone = sample(7, NOISE, 3, range(20), 10)
        for i in (0, 5, 19):
            assert np.array_equal(sample(7, NOISE, 3, range(i, i + 1), 10)[0], everyone[i])


def test_noise_does_not_repeat_between_nodes_and_iterations() -> None:
    """The paper's seed s0 + 1000 i + 10 t gives (i, t) and (i+1, t-100) the same noise."""
    problem = LeastSquares(LeastSquaresSettings(), [0], range(3))
    draws = np.stack([problem.noise(t) for t in range(300)])  # [t, node, seed, d]
    assert np.unique(draws).size == draws.size
    other = LeastSquares(LeastSquaresSettings(), [1], range(3))
    assert not np.isin(other.noise(0), draws).any()


def test_noise_is_standard_normal() -> None:
    sample = gaussians(0, NOISE, 0, range(2000), 10).ravel()
    assert scipy.stats.kstest(sample, "norm").pvalue > 0.01
    pairs = gaussians(1, NOISE, 0, range(2000), 10)
    assert np.abs(np.corrcoef(pairs.T) - np.eye(10)).max() < 0.1


def test_data_follows_the_papers_recipe() -> None:
    problem = LeastSquares(LeastSquaresSettings(), [0, 1], range(500))
    assert problem.curvature.min() >= 5.5
    assert problem.curvature.max() <= 12.5
    assert problem.curvature.mean() == pytest.approx(9, abs=0.2)
    for k, seed in enumerate([0, 1]):
        shared = gaussians(seed, CENTER, 0, range(1), 10)
        assert np.linalg.norm(problem.center[:, k] - shared, axis=-1) == pytest.approx(3.0)
    assert np.std(problem.start) == pytest.approx(1, abs=0.02)


def test_gradient_is_the_derivative_of_the_loss() -> None:
    problem = LeastSquares(LeastSquaresSettings(noise=0), [0], range(4))
    theta, step = problem.start, 1e-6
    for k in range(3):
        shift = np.zeros(10)
        shift[k] = step
        slope = (problem.measure(theta + shift)["loss"] - problem.measure(theta - shift)["loss"]) / (2 * step)
        assert problem.gradient(theta, 0)[..., k] == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("name", ["A", "D"])
def test_weighted_gradient_vanishes_at_the_optimum(name: str) -> None:
    vector = weights.named(name)
    problem = LeastSquares(LeastSquaresSettings(regularization=0.5), [0, 3], range(vector.size))
    theta = np.broadcast_to(problem.optimum(vector), problem.start.shape)
    mean = np.tensordot(vector / vector.size, problem.exact_gradient(theta), axes=1)
    assert np.abs(mean).max() < 1e-12


def test_one_node_as_a_model_equals_its_row() -> None:
    vector = weights.named("A")
    config = LeastSquaresSettings()
    everyone = LeastSquares(config, [5], range(16))
    context = ProblemContext(9, vector, 5, torch.device("cpu"), torch.float64)
    node = LeastSquaresProblem(context)
    node.backward(17)
    assert node.theta.grad is not None
    assert np.array_equal(node.theta.detach().numpy(), everyone.start[9])
    assert np.allclose(node.theta.grad.numpy(), everyone.gradient(everyone.start, 17)[9], rtol=1e-15)
    narrow = dataclasses.replace(context, dtype=torch.float32)
    assert LeastSquaresProblem(narrow).theta.dtype == torch.float32
