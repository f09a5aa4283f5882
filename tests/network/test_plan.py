"""What `dgt plan` predicts, against the algorithm itself on stacked arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import pytest

from dgt import reference
from dgt.config import TopologyConfig
from dgt.network import graphs, moments, plan, stability, weights
from dgt.network.plan import Advantage, Prediction
from dgt.network.systems.gradient_tracking import GradientTracking
from dgt.network.weights import Weights
from tests.network.quadratics import FAMILIES, TOPOLOGIES, Noisy, drawn, weighted_gradients

MOMENTA: list[dict[str, Any]] = [{}, {"momentum": 0.8}, {"momentum": 0.8, "nesterov": True}]
WEIGHTS = weights.normalise([0.3, 0.8, 1.0, 0.9, 2.0, 2.2, 1.2])


def runs(
    problem: reference.StackedProblem,
    graph: nx.Graph,
    node_weights: Weights,
    name: str,
    lr: float,
    iterations: int,
    **settings: Any,
) -> Iterator[reference.State]:
    return reference.states(
        "gradient_tracking", problem, graph, node_weights, name, laziness=0.3, lr=lr, iterations=iterations, **settings
    )


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("name", ["I", "II"])
def test_without_noise_the_prediction_is_the_run(name: str, momentum: dict[str, Any]) -> None:
    graph, lr = graphs.grid(7), 0.004 if momentum else 0.03
    problem, quadratic = drawn(7, 0.0, range(3))
    system, times = GradientTracking.of(graph, WEIGHTS, name, 0.3, **momentum), [0, 1, 2, 7, 40, 90]
    norms = moments.expected_norms(system, WEIGHTS, quadratic, lr, times)
    states = [state for state in runs(problem, graph, WEIGHTS, name, lr, 90, **momentum) if state.iteration in times]
    for norm, state in zip(norms, states, strict=True):
        assert norm == pytest.approx(weighted_gradients(quadratic, WEIGHTS, state.theta), rel=1e-9)


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("name", ["I", "II"])
def test_with_noise_the_prediction_is_the_mean_of_many_runs(name: str, momentum: dict[str, Any]) -> None:
    graph, copies, times, lr = graphs.ring(7), 1000, [0, 1, 3, 10, 60], 0.006 if momentum else 0.03
    _, quadratic = drawn(7, 2.0, range(1))
    system = GradientTracking.of(graph, WEIGHTS, name, 0.3, **momentum)
    norms = moments.expected_norms(system, WEIGHTS, quadratic, lr, times)[:, 0]
    consensus = moments.expected_consensus(system, WEIGHTS, quadratic, lr, times, probes=0)[:, 0]
    estimate = moments.expected_consensus(system, WEIGHTS, quadratic, lr, times, probes=400)[:, 0]
    assert estimate == pytest.approx(consensus, rel=0.1)
    found = list(runs(Noisy(quadratic, copies), graph, WEIGHTS, name, lr, 60, **momentum))
    for t, norm, apart in zip(times, norms, consensus, strict=True):
        theta = found[t].theta
        measured = weighted_gradients(quadratic, WEIGHTS, theta)
        assert abs(measured.mean() - norm) < 4 * measured.std() / copies**0.5 + 1e-12, t
        average = np.tensordot(system.plan.average_weights, theta, 1)
        squares = np.tensordot(WEIGHTS / 7, ((theta - average) ** 2).sum(-1), 1)
        assert np.sqrt(squares.mean()) == pytest.approx(apart, rel=0.03), t


@pytest.mark.parametrize("dimension", [1, 2, 10])
@pytest.mark.parametrize("mean", [0.0, 0.7, 5.0, 80.0])
def test_the_norm_of_a_gaussian_vector(dimension: int, mean: float) -> None:
    sample = 1.5 * np.random.default_rng(0).standard_normal((200_000, dimension))
    sample[:, 0] += mean
    expected = moments.expected_norm(np.array([mean**2]), np.array([2.25]), dimension)
    assert expected[0] == pytest.approx(np.linalg.norm(sample, axis=1).mean(), rel=5e-3)
    assert moments.expected_norm(np.array([mean**2]), np.array([0.0]), dimension)[0] == mean


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("name", ["I", "II"])
def test_contraction_is_the_rate_at_which_runs_converge(name: str, momentum: dict[str, Any]) -> None:
    graph, lr = graphs.ring(7), 0.004 if momentum else 0.05
    problem, quadratic = drawn(7, 0.0, range(1))
    rate = stability.contraction(
        GradientTracking.of(graph, WEIGHTS, name, 0.3, **momentum), quadratic.curvature[:, 0], lr
    )
    distance = [
        np.linalg.norm(state.theta - quadratic.optimum(WEIGHTS))
        for state in runs(problem, graph, WEIGHTS, name, lr, 250, **momentum)
    ]
    swings = 3e-3 if momentum else 1e-3  # the eigenvalues of momentum are complex
    assert (distance[250] / distance[150]) ** 0.01 == pytest.approx(rate, abs=swings)


def test_contraction_of_equal_curvatures_is_that_of_the_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    """mu^2 - (2 - a h) s mu + s^2 - a h s = 0 for every eigenvalue s of W but 1, and 1 - a h for the average."""
    system, h, lr = GradientTracking.of(graphs.grid(12), weights.lognormal(12), "II", 0.3), 9.0, 0.02
    eigenvalues = np.linalg.eigvals(system.W.toarray()).real
    roots = [np.roots([1, -(2 - lr * h) * s, s**2 - lr * h * s]) for s in eigenvalues if s < 1 - 1e-9]
    expected = max(1 - lr * h, np.abs(roots).max())
    assert stability.contraction(system, np.full(12, h), lr) == pytest.approx(expected, rel=1e-9)
    monkeypatch.setattr(stability, "EXACT_NODES", 4)  # as on larger networks
    assert stability.contraction(system, np.full(12, h), lr) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", ["I", "II"])
@pytest.mark.parametrize("topology", ["ring", "star", "complete"])
@pytest.mark.parametrize("momentum", MOMENTA)
def test_the_largest_stable_step_is_on_the_edge(name: str, topology: str, momentum: dict[str, Any]) -> None:
    """Of the draw that is first to diverge."""
    system = GradientTracking.of(getattr(graphs, topology)(7), WEIGHTS, name, 0.3, **momentum)
    curvature = drawn(7, 0.0, range(8))[1].curvature
    step, hardest = stability.largest_stable_step(system, curvature)
    rates, beyond = ([stability.contraction(system, draw, lr) for draw in curvature.T] for lr in (step, 1.03 * step))
    assert max(rates) < 1 < beyond[hardest]


def test_graphs_that_contract_to_nothing_are_not_taken_to_diverge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector that halves in every step was too short to be squared after 600 of them."""
    system, curvature = GradientTracking.of(graphs.complete(12), weights.uniform(12), "II", 0.1), np.linspace(8, 9, 12)
    expected = stability.contraction(system, curvature, 0.06)
    assert expected < 0.5
    monkeypatch.setattr(stability, "EXACT_NODES", 4)  # as on larger networks
    assert stability.contraction(system, curvature, 0.06) == pytest.approx(expected, rel=1e-3)


def test_diverging_runs_are_infinite_and_lose() -> None:
    _, quadratic = drawn(7, 1.0, range(2))
    system = GradientTracking.of(graphs.ring(7), WEIGHTS, "I", 0.3)
    wild, tame = (plan.predict(system, WEIGHTS, quadratic, lr, range(0, 2001, 10)) for lr in (1.0, 0.02))
    assert wild.error == np.inf
    assert wild.reached(1e-3) is None
    assert plan.advantage(tame, wild).share == 1
    assert plan.advantage(wild, tame).is_clear
    assert not plan.advantage(wild, wild).is_clear


def test_uniform_weights_leave_nothing_to_choose() -> None:
    ones = weights.uniform(9)
    _, quadratic = drawn(9, 1.0, range(4))
    one, two = (
        plan.predict(GradientTracking.of(graphs.grid(9), ones, name, 0.3), ones, quadratic, 0.02, range(0, 100))
        for name in ("I", "II")
    )
    assert abs(plan.advantage(one, two).share) < 1e-9
    assert not plan.advantage(one, two).is_clear


def test_runs_down_to_rounding_are_told_apart_by_how_soon_they_got_there() -> None:
    times = list(range(101))
    quick, slow = (Prediction(times, np.exp(-rate * np.arange(101))[:, None], np.ones((101, 1))) for rate in (0.9, 0.8))
    assert quick.error == slow.error == plan.ROUNDING
    assert plan.advantage(quick, slow).share == pytest.approx(1 - 0.8 / 0.9, abs=0.03)


def test_of_equals_the_cheapest_comes_first() -> None:
    items = [(1.0, 9.0), (1.005, 3.0), (1.009, 5.0), (2.0, 0.0)]
    assert plan.ranked(items, lambda item: item[0], lambda item: item[1]) == [items[1], items[2], items[0], items[3]]


@dataclass
class Pair:
    """Weights and a graph: by how much Strategy II should be ahead, and by how much it is."""

    case: tuple
    planned: Advantage
    happens: Advantage

    @property
    def is_decided(self) -> bool:
        return abs(self.happens.share) > max(0.02, 2 * self.happens.uncertainty)

    @property
    def is_right(self) -> bool:
        return bool(np.sign(self.planned.share) == np.sign(self.happens.share))


def pairs(count: int, seed: int, momentum: float = 0.0) -> Iterator[Pair]:
    """Random weights, graphs, step sizes and noise; the runs draw problems and noise from seeds the plan has not."""
    random, times = np.random.default_rng(seed), list(range(0, 151, 3))
    for _ in range(count):
        n, lr, noise = (random.choice(options) for options in ([5, 8, 16, 24], [0.01, 0.02, 0.05], [0.0, 1.0, 1.0]))
        family, topology = random.choice(list(FAMILIES)), random.choice(TOPOLOGIES)
        node_weights = weights.normalise(FAMILIES[family](n, random.choice([0.3, 1.0]), random))
        settings = TopologyConfig(name=str(topology), seed=int(random.integers(99)), optimize=False)
        graph = graphs.from_config(settings, node_weights)
        _, quadratic = drawn(n, noise, range(10), dimension=10)
        other, others = drawn(n, noise, range(500, 510), dimension=10)
        expected, measured = {}, {}
        lr *= 1 - momentum
        for name in ("I", "II"):
            system = GradientTracking.of(graph, node_weights, name, 0.3, momentum)
            expected[name] = plan.predict(system, node_weights, quadratic, lr, times)
            norms = [
                weighted_gradients(others, node_weights, state.theta)
                for state in runs(other, graph, node_weights, name, lr, 150, momentum=momentum)
                if state.iteration in times
            ]
            measured[name] = Prediction(times, np.array(norms), np.array(norms))
        ahead = [plan.advantage(pair["II"], pair["I"]) for pair in (expected, measured)]
        yield Pair((n, lr, noise, family, topology), *ahead)


def test_the_choice_of_strategy_is_what_converges_faster_on_pairs_not_seen_before() -> None:
    """Wherever runs of ten seeds differ by more than 2 % and by more than chance, the better strategy was chosen."""
    found = list(pairs(24, seed=2))
    decided = [pair for pair in found if pair.is_decided]
    assert [pair for pair in decided if not pair.is_right] == []
    assert len(decided) >= 10
    assert any(pair.planned.share < 0 for pair in decided), "Strategy II is not always the better one"
    nearly_equal = [pair for pair in found if pair.case[3] == "nearly equal" and pair.case[2]]
    assert nearly_equal
    assert not any(pair.planned.is_clear for pair in nearly_equal)


@pytest.mark.trials
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_choice_of_strategy_on_three_hundred_pairs(momentum: float) -> None:
    decided = [pair for pair in pairs(300, seed=3, momentum=momentum) if pair.is_decided]
    wrong = [pair for pair in decided if not pair.is_right]
    right = [pair for pair in decided if pair.is_right]
    of_first = sum(pair.happens.share < 0 for pair in right)
    print(f"momentum {momentum:g}: {len(right)} of {len(decided)} right, {of_first} of them Strategy I;", wrong)
    assert len(wrong) <= 0.02 * len(decided)
