"""The twin by itself: what the equations promise."""

from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np
import pytest

from dgt import reference
from dgt.config import ProblemConfig, TopologyConfig
from dgt.network import graphs, weights
from dgt.network.mixing import mixing_matrix, strategy
from dgt.problems.least_squares import LeastSquares


def last(states: Iterator[reference.State]) -> reference.State:
    return list(states)[-1]


def run(
    name: str,
    vector: np.ndarray,
    algorithm: str = "gradient_tracking",
    noise: float = 0.0,
    iterations: int = 800,
):
    problem = LeastSquares(ProblemConfig(noise=noise), [0], range(vector.size))
    graph = graphs.exponential(vector.size)
    return problem, reference.states(
        algorithm, problem, graph, vector, name, laziness=0.3, lr=0.02, iterations=iterations
    )


@pytest.mark.parametrize("name", ["I", "II"])
def test_noise_free_tracking_reaches_the_optimum_and_dsgd_does_not(name: str) -> None:
    vector = weights.named("A")
    problem, states = run(name, vector)
    optimum = problem.optimum(vector)
    assert np.abs(last(states).theta - optimum).max() < 1e-8
    assert np.abs(last(run(name, vector, "dsgd")[1]).theta - optimum).max() > 1e-2
    assert np.abs(last(run(name, vector, "allreduce")[1]).theta - optimum).max() < 1e-8


@pytest.mark.parametrize("wire", ["int8", "int4"])
@pytest.mark.parametrize("name", ["I", "II"])
def test_few_bits_change_neither_the_optimum_nor_where_dsgd_ends(name: str, wire: str) -> None:
    """The error goes to zero with the changes: rounding adds no bias, to either algorithm."""
    vector = weights.named("B")
    problem = LeastSquares(ProblemConfig(noise=0.0), [0], range(vector.size))
    graph = graphs.exponential(vector.size)
    ends = {
        (algorithm, each): last(
            reference.states(algorithm, problem, graph, vector, name, laziness=0.3, lr=0.02, iterations=900, wire=each)
        ).theta
        for algorithm, each in [("gradient_tracking", wire), ("dsgd", wire), ("dsgd", "full")]
    }
    assert np.abs(ends["gradient_tracking", wire] - problem.optimum(vector)).max() < 1e-10
    assert np.abs(ends["dsgd", wire] - ends["dsgd", "full"]).max() < 1e-10


def falling(start: float, to: float, steps: int) -> reference.StepSize:
    """lr falls by the same factor every step; slower than sqrt(beta2), else Adam's v remembers too large gradients."""
    return lambda t: start * to ** (t / steps)


ADAM = {"base": "adam", "base_options": {"betas": (0.9, 0.99)}}
AMSGRAD = {"base": "adam", "base_options": {"amsgrad": True}}
EXACT: dict[str, tuple[dict[str, Any], reference.StepSize]] = {
    "momentum": ({"momentum": 0.9}, 0.002),
    "Nesterov": ({"momentum": 0.9, "nesterov": True}, 0.002),
    "AMSGrad": (AMSGRAD, falling(0.02, 1e-2, 6000)),
    "AMSGrad, own": (AMSGRAD | {"base_form": "own"}, falling(0.02, 1e-2, 6000)),
    "Adam": (ADAM, falling(0.03, 1e-10, 8000)),
    "Adam, own": (ADAM | {"base_form": "own"}, falling(0.03, 1e-10, 8000)),
    "Adam, predicted": (ADAM | {"base_form": "predicted"}, falling(0.03, 1e-10, 8000)),
    "Adam, together": (ADAM | {"base_form": "together"}, falling(0.03, 1e-10, 8000)),
    "RMSprop": ({"base": "rmsprop"}, falling(0.01, 1e-10, 8000)),
    "momentum, local steps": ({"momentum": 0.9, "local_steps": 2}, 0.002),
    "Adam, local steps, narrow wire": (ADAM | {"local_steps": 2, "wire": "bfloat16"}, falling(0.03, 1e-10, 8000)),
}


def connected(n: int) -> nx.Graph:
    """A random tree and as many random edges."""
    draw = np.random.default_rng(n)
    graph = nx.random_labeled_tree(n, seed=n)
    graph.add_edges_from((int(a), int(b)) for a, b in draw.integers(0, n, (n, 2)) if a != b)
    return graph


@pytest.mark.parametrize("descent", EXACT)
@pytest.mark.parametrize("name", ["I", "II"])
def test_momentum_and_bases_on_the_tracker_reach_the_weighted_optimum(name: str, descent: str) -> None:
    settings, lr = EXACT[descent]
    for n in (2, 5, 13, 33):
        vector = weights.normalise(np.random.default_rng(n).lognormal(0, 0.7, n))
        problem = LeastSquares(ProblemConfig(noise=0.0), [0], range(n))
        states = reference.states(
            "gradient_tracking", problem, connected(n), vector, name, laziness=0.3, lr=lr, iterations=12_000, **settings
        )
        assert np.abs(last(states).theta - problem.optimum(vector)).max() < 1e-8, n


def test_what_is_labelled_biased_is() -> None:
    vector = weights.normalise(np.random.default_rng(8).lognormal(0, 0.7, 8))
    problem = LeastSquares(ProblemConfig(noise=0.0), [0], range(8))
    for settings in (ADAM, {"momentum": 0.9}):
        states = reference.states(
            "dsgd", problem, connected(8), vector, "I", laziness=0.3, lr=0.002, iterations=6000, **settings
        )
        assert np.abs(last(states).theta - problem.optimum(vector)).max() > 1e-3
    decay = ADAM | {"base": "adamw", "base_options": {"weight_decay": 0.1}}
    states = reference.states(
        "gradient_tracking", problem, connected(8), vector, "II", laziness=0.3, lr=0.01, iterations=6000, **decay
    )
    theta = last(states).theta
    disagreement = np.abs(theta - theta.mean(0)).max()
    assert 1e-6 < disagreement < 0.1, "decoupled weight decay is not tracked: of order lr"


@pytest.mark.parametrize("name", ["I", "II"])
def test_tracking_invariant_holds_at_every_iteration(name: str) -> None:
    vector = weights.named("B")
    problem, states = run(name, vector, noise=1.0, iterations=100)
    plan = strategy(name, vector)
    for state in states:
        metrics = reference.network_metrics(state, problem, vector, plan)
        assert metrics.get("tracking_residual", np.zeros(1)).max() < 1e-10


def test_tracking_residual_sees_a_lost_gradient() -> None:
    """A tracker that forgets the last gradient on one node breaks the invariant for good."""
    vector = weights.named("B")
    problem, states = run("II", vector, noise=1.0, iterations=5)
    state = last(states)
    state.tracker[3] += 0.1
    assert reference.network_metrics(state, problem, vector, strategy("II", vector))["tracking_residual"].max() > 1e-3


@pytest.mark.heavy
def test_strategy_two_is_at_or_below_strategy_one_in_all_16_cells() -> None:
    """The paper's result: weighted gradient norm, last fifth of 300 iterations, mean of ten seeds."""
    ratios = {}
    for name in "ABCD":
        vector = weights.named(name)
        problem = LeastSquares(ProblemConfig(), range(10), range(vector.size))
        for topology in ("ring", "grid", "exponential", "tailored"):
            graph = graphs.from_config(TopologyConfig(name=topology), vector)
            late = {}
            for which in ("I", "II"):
                states = reference.states(
                    "gradient_tracking", problem, graph, vector, which, laziness=0.3, lr=0.02, iterations=300
                )
                norms = [
                    np.linalg.norm(
                        np.tensordot(vector / vector.size, problem.exact_gradient(state.theta), axes=1), axis=-1
                    )
                    for state in states
                    if state.iteration >= 240 and state.iteration % 3 == 0
                ]
                late[which] = np.mean(norms)
            ratios[name, topology] = late["II"] / late["I"]
    assert len(ratios) == 16
    assert max(ratios.values()) <= 1, ratios
    # the gap widens with heterogeneity
    mean = {
        name: np.mean([ratio for (weights_name, _), ratio in ratios.items() if weights_name == name]) for name in "ABCD"
    }
    assert mean["D"] < mean["C"] < min(mean["A"], mean["B"])


@pytest.mark.parametrize("name", ["I", "II"])
def test_sending_z_and_y_is_the_same_as_sending_theta_and_y(name: str) -> None:
    """The twin mixes z = theta - alpha y; the paper's other way, W theta - alpha W y, gives the same run."""
    vector = weights.named("A")
    problem, states = run(name, vector, noise=1.0, iterations=50)
    plan = strategy(name, vector)
    W, G = mixing_matrix(graphs.exponential(16), plan.mixing_weights, 0.3).toarray(), plan.gradient_scale[:, None]
    theta, gradient, y = problem.start[:, 0], 0.0, 0.0
    for state in states:
        assert np.allclose(state.theta[:, 0], theta, rtol=0, atol=1e-11)
        following = problem.gradient(theta[:, None], state.iteration)[:, 0]
        y, gradient = W @ (y * np.ones_like(theta)) + G * (following - gradient), following
        theta = W @ theta - 0.02 * (W @ y)
