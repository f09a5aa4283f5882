"""Every constant and bound of the paper against numbers got in another way: sums, dense matrices, runs of the twin."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgt import reference
from dgt.errors import ConfigError
from dgt.network import graphs, theory, weights
from dgt.network.mixing import mixing_matrix, strategy
from dgt.problems.least_squares import LeastSquares, LeastSquaresSettings

rates = st.floats(0.01, 0.97)
K = np.arange(4000.0)


def dense_norm(matrix: np.ndarray, vector: np.ndarray) -> float:
    """||M||_lambda = ||D^1/2 M D^-1/2||_2 by singular values, lambda repeated where M is made of blocks."""
    root = np.sqrt(np.tile(vector, len(matrix) // vector.size))
    return float(np.linalg.svd(root[:, None] * matrix / root[None, :], compute_uv=False)[0])


def deviation(graph: nx.Graph, vector: np.ndarray, name: str) -> np.ndarray:
    """W - J for Strategy I, W - Lambda for II."""
    plan = strategy(name, vector)
    W = mixing_matrix(graph, plan.mixing_weights, 0.3).toarray()
    return W - np.ones((vector.size, 1)) * plan.average_weights[None, :]


@given(rates)
def test_a_and_b_bound_the_series_they_stand_for_and_closely(rho: float) -> None:
    noise = ((K**2 + 1) * rho ** (2 * K)).sum()
    cross = ((rho * K / (1 - rho) + 1) * rho**K / (1 - rho)).sum()
    assert noise <= theory.A(rho) <= 1.55 * noise
    assert noise + cross <= theory.B(rho) <= 1.15 * (noise + cross)


@given(rates)
def test_start_factor_is_its_series_and_bounds_the_powers_of_a(rho: float) -> None:
    assert theory.start_factor(rho) == pytest.approx(((K**2 + 3) * rho ** (2 * K)).sum(), rel=1e-9)
    on = theory.OnNetwork("II", 2, rho, 1.0, 1.0, 0.5)
    assert sum(theory.power_norm(on, t) ** 2 for t in range(300)) <= theory.start_factor(rho)


def test_constants_of_the_weights() -> None:
    vector = weights.named("D")
    assert theory.kappa_lambda(vector) == pytest.approx(math.sqrt(50))
    assert theory.c_lambda(vector) == pytest.approx(sum(value**2 for value in vector.tolist()) / 64**2)
    assert theory.c_lambda(weights.uniform(7)) == pytest.approx(1 / 7)
    assert theory.kappa_lambda(weights.uniform(7)) == 1


@pytest.mark.parametrize("graph", [graphs.ring(16), graphs.grid(16), graphs.star(16), graphs.complete(16)])
def test_rho_is_the_norm_of_the_deviation_matrix(graph: nx.Graph) -> None:
    vector = weights.named("A")
    ones = np.ones(16)
    assert theory.rho_J(graph) == pytest.approx(dense_norm(deviation(graph, vector, "I"), ones), abs=1e-12)
    assert theory.rho_Lambda(graph, vector) == pytest.approx(
        dense_norm(deviation(graph, vector, "II"), vector), abs=1e-12
    )
    # in the weighted norm W^ds is worse than its rho by kappa at most
    weighted = dense_norm(deviation(graph, vector, "I"), vector)
    assert weighted <= theory.kappa_lambda(vector) * theory.rho_J(graph) + 1e-12


@pytest.mark.parametrize("t", [1, 2, 5, 20])
@pytest.mark.parametrize("graph", [graphs.ring(16), graphs.exponential(16)])
def test_power_norm_is_exact_for_two_and_a_bound_for_one(graph: nx.Graph, t: int) -> None:
    """Against the singular values of the explicit power; the main text's equality for Strategy I does not hold."""
    vector = weights.named("A")
    for name in ("I", "II"):
        M = deviation(graph, vector, name)
        power = np.linalg.matrix_power(np.block([[M, -M], [np.zeros_like(M), M]]), t)
        norm, said = dense_norm(power, vector), theory.power_norm(theory.on_network(graph, vector, name), t)
        if name == "II":
            assert said == pytest.approx(norm, rel=1e-9)
        else:
            assert norm <= said
            assert norm < 0.95 * said


@given(rates, st.floats(1, 10), st.floats(0.1, 20))
def test_step_limits_are_where_the_constants_run_out(rho: float, largest: float, beta: float) -> None:
    on = theory.OnNetwork("I", 10, rho, largest, 2.0, 0.2)
    assert theory.C1(on, theory.consensus_step_limit(on, beta), beta) == pytest.approx(0, abs=1e-9)
    assert theory.C2(on, theory.step_limit(on, beta), beta) == pytest.approx(0, abs=1e-9)
    assert theory.C1(on, theory.step_limit(on, beta), beta) == pytest.approx(2 / 62)
    assert theory.step_limit(on, beta) < theory.consensus_step_limit(on, beta) < theory.recursion_step_limit(on, beta)
    # 27 (2 - rho) / (2 (1 - rho)) lambda_max^2 alpha^2 beta^2 = 1/2, which the recursion needs
    alpha = theory.recursion_step_limit(on, beta)
    assert 27 * (2 - rho) / (2 * (1 - rho)) * (largest * alpha * beta) ** 2 == pytest.approx(0.5)


def test_strategies_are_one_with_uniform_weights() -> None:
    one, two = (theory.on_network(graphs.grid(16), weights.uniform(16), name) for name in ("I", "II"))
    run = theory.Run(lr=1e-4, smoothness=12.0, noise=10.0, iterations=100, start_error=5.0, start_loss=2.0)
    assert theory.convergence_bound(one, run) == pytest.approx(theory.convergence_bound(two, run))
    assert theory.consensus_bound(one, run, 3.0) == pytest.approx(theory.consensus_bound(two, run, 3.0))
    assert theory.euclidean_bound(one, run, substituted=True) == pytest.approx(theory.convergence_bound(one, run))


def test_steps_without_a_guarantee_are_refused() -> None:
    on = theory.on_network(graphs.ring(16), weights.named("A"), "II")
    run = theory.Run(lr=1.0, smoothness=12.5, noise=1.0, iterations=10, start_error=1.0)
    for bound in (lambda: theory.convergence_bound(on, run), lambda: theory.consensus_bound(on, run, 1.0)):
        with pytest.raises(ConfigError, match=r"lr=1: .*below .* on this network"):
            bound()
    with pytest.raises(ConfigError, match="strategy=II: the Euclidean bound"):
        theory.euclidean_bound(on, run)


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("name", ["I", "II"])
@pytest.mark.parametrize("share", [0.3, 0.95])
def test_bounds_bound_runs_of_the_twin(name: str, noise: float, share: float) -> None:
    """Least squares on 20 seeds at a share of the largest step allowed: errors below their bounds, and not absurdly."""
    vector, graph, T = weights.named("A"), graphs.exponential(16), 200
    config = LeastSquaresSettings(noise=noise)
    problem = LeastSquares(config, range(20), range(16))
    beta = config.curvature_max + config.regularization
    on, plan = theory.on_network(graph, vector, name), strategy(name, vector)
    lr = share * theory.step_limit(on, beta)
    mean = plan.average_weights

    def weighted(stacked: np.ndarray) -> float:
        """||(I - M) X||^2_{F,lambda}, averaged over the seeds."""
        apart = stacked - np.tensordot(mean, stacked, axes=1)
        return float((vector[:, None] * (apart**2).sum(-1)).sum(0).mean())

    def loss(theta: np.ndarray) -> float:
        everywhere = np.broadcast_to(theta, problem.start.shape)
        return float(np.tensordot(vector / 16, problem.measure(everywhere)["loss"], axes=1).mean())

    states = list(
        reference.states("gradient_tracking", problem, graph, vector, name, laziness=0.3, lr=lr, iterations=T)
    )
    gradients, errors = [], []
    for state, following in itertools.pairwise(states):
        average = np.tensordot(mean, state.theta, axes=1)
        exact = np.tensordot(vector / 16, problem.exact_gradient(np.broadcast_to(average, state.theta.shape)), axes=1)
        gradients.append(float((exact**2).sum(-1).mean()))
        errors.append(weighted(state.theta) + lr**2 * weighted(following.tracker))
    start = np.tensordot(mean, problem.start, axes=1)
    run = theory.Run(
        lr=lr, smoothness=beta, noise=config.dimension * noise**2, iterations=T, start_error=errors[0],
        start_loss=loss(start) - loss(problem.optimum(vector)),
    )  # fmt: skip
    assert np.mean(gradients) <= theory.convergence_bound(on, run)
    assert sum(errors) <= theory.consensus_bound(on, run, sum(gradients))
    if name == "I":
        assert np.mean(gradients) <= theory.euclidean_bound(on, run)


def test_the_euclidean_bound_is_looser_in_noise_than_the_weighted_one_and_as_printed() -> None:
    """Not in the start: there it has lambda_max^2 = 16 where the weighted one has kappa^2 = 20."""
    vector = weights.named("C")
    on = theory.on_network(graphs.exponential(32), vector, "I")
    run = theory.Run(lr=1e-4, smoothness=12.5, noise=10.0, iterations=300, start_error=50.0, start_loss=10.0)
    from_start = theory.Run(lr=1e-4, smoothness=12.5, noise=0.0, iterations=300, start_error=50.0, start_loss=10.0)
    by_noise = [bound(on, run) - bound(on, from_start) for bound in (theory.euclidean_bound, theory.convergence_bound)]
    assert by_noise[0] > 10 * by_noise[1] > 0
    most, rho, n, a, b = float(vector.max()), on.rho, 32, run.lr, run.smoothness
    c1 = 1 - 60 * most**2 * a**2 * b**2 * theory.B(rho)
    c2 = 1 - 2 * most**2 * a**2 * b**2 * theory.B(rho) / c1
    printed = 2 * 10 / (a * 300) / c2 + most**3 / (n * c2) * a * b * 10
    printed += most**2 / (c1 * c2) * 6 * (4 * rho**4 - 5 * rho**2 + 3) * b**2 / ((1 - rho**2) ** 3 * n * 300) * 50
    printed += most**4 / (c1 * c2) * 18 * a**2 * b**2 * 10 * theory.A(rho)
    printed += most**6 / (c1 * c2) * 24 * theory.c_lambda(vector) * a**4 * b**4 * 10 * theory.B(rho)
    assert theory.euclidean_bound(on, run) == pytest.approx(printed, rel=1e-12)
