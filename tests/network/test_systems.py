"""The linear systems of all algorithms against the algorithms themselves on stacked arrays."""

from __future__ import annotations

import numpy as np
import pytest

from dgt.network import graphs, moments, schedules, stability, systems, weights
from tests.network.cases import Case, disagreement, distances
from tests.network.quadratics import Noisy, drawn, weighted_gradients

HEAVY_BALL, NESTEROV, EXTRA = {"momentum": 0.8}, {"momentum": 0.8, "nesterov": True}, {"form": "extra"}
GT, ED = "gradient_tracking", "exact_diffusion"
CASES = [
    Case(GT, local_steps=3, strategy="I"),
    Case(GT, local_steps=2, lr=0.004, settings=NESTEROV),
    Case(GT, "one_peer"),  # random matchings of an odd number of nodes
    Case(GT, "one_peer", "I", nodes=8),
    Case(GT, "one_peer", nodes=8, lr=0.004, settings=HEAVY_BALL),
    Case(GT, "one_peer", nodes=8, settings={"rounds": 2}),
    Case(GT, "one_peer", nodes=8, local_steps=2, lr=0.002, settings={**NESTEROV, "rounds": 2}),
    Case(ED),
    Case(ED, strategy="I"),
    Case(ED, lr=0.004, settings=NESTEROV),
    Case(ED, strategy="I", local_steps=3, lr=0.004, settings=HEAVY_BALL),
    Case(ED, settings=EXTRA),
    Case(ED, local_steps=3, settings=EXTRA),
    Case(ED, local_steps=2, lr=0.004, settings={**EXTRA, **NESTEROV}),
    Case("dsgd", strategy="I"),
    Case("dsgd", "one_peer", local_steps=2, lr=0.004, settings=HEAVY_BALL),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_noise_the_prediction_is_the_run(case: Case) -> None:
    problem, quadratic = drawn(case.nodes, 0.0, range(3))
    times = [0, 1, 2, 3, 7, 40, 90]
    norms = moments.expected_norms(case.system, case.weights, quadratic, case.lr, times)
    apart = moments.expected_consensus(case.system, case.weights, quadratic, case.lr, times, probes=0)
    found = list(case.runs(problem, 90))
    for t, norm, distance in zip(times, norms, apart, strict=True):
        assert norm == pytest.approx(weighted_gradients(quadratic, case.weights, found[t].theta), rel=1e-8)
        assert distance == pytest.approx(disagreement(case, found[t].theta), rel=1e-8), t


@pytest.mark.parametrize("case", CASES, ids=str)
def test_with_noise_the_prediction_is_the_mean_of_many_runs(case: Case) -> None:
    copies, times = 400, [0, 1, 2, 3, 10, 60, 61]
    _, quadratic = drawn(case.nodes, 2.0, range(1))
    norms = moments.expected_norms(case.system, case.weights, quadratic, case.lr, times)[:, 0]
    apart = moments.expected_consensus(case.system, case.weights, quadratic, case.lr, times, probes=0)[:, 0]
    found = list(case.runs(Noisy(quadratic, copies), 61))
    for t, norm, distance in zip(times, norms, apart, strict=True):
        measured = weighted_gradients(quadratic, case.weights, found[t].theta)
        assert abs(measured.mean() - norm) < 4.5 * measured.std() / copies**0.5 + 1e-12, t
        assert np.sqrt((disagreement(case, found[t].theta) ** 2).mean()) == pytest.approx(distance, rel=0.05), t


@pytest.mark.parametrize("case", CASES[:-2], ids=str)
def test_contraction_is_the_rate_at_which_runs_converge(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean per step over periods of 2, 3, 4, 6 and 12 steps; and as it is found on larger networks."""
    problem, quadratic = drawn(case.nodes, 0.0, range(1))
    rate = stability.contraction(case.system, quadratic.curvature[:, 0], case.lr)
    found = np.array(distances(case, problem, quadratic, case.lr, 240))
    end = 24 * (int((found > 1e-10).sum()) // 24)  # above rounding, whole periods
    swings = 1e-2 if case.settings else 5e-3  # complex eigenvalues
    assert (found[end] / found[end // 2]) ** (2 / end) == pytest.approx(rate, abs=swings)
    monkeypatch.setattr(stability, "EXACT_NODES", 4)
    assert stability.contraction(case.system, quadratic.curvature[:, 0], case.lr) == pytest.approx(rate, abs=3e-3)


@pytest.mark.parametrize("case", CASES[:-2], ids=str)
def test_runs_converge_below_the_stable_step_and_diverge_above(case: Case) -> None:
    problem, quadratic = drawn(case.nodes, 0.0, range(1))
    limit, _ = stability.largest_stable_step(case.system, quadratic.curvature)
    below, above = (distances(case, problem, quadratic, share * limit, 2500) for share in (0.9, 1.15))
    assert below[-1] < max(0.8 * below[1250], 1e-12)  # close to the limit it is slow
    assert not above[-1] < 10 * above[0]


def test_the_limit_on_a_sorted_hypercube_is_a_half_to_a_third() -> None:
    """Of gradient tracking with Strategy II on the paper's weights; the exponential graph beside it."""
    for name in ("A", "B"):
        lambdas = weights.named(name)
        curvature = drawn(lambdas.size, 0.0, range(3), dimension=10)[1].curvature
        one_peer, dense = (
            stability.largest_stable_step(systems.named(GT).of(graph, lambdas, "II", 0.3), curvature)[0]  # type: ignore[union-attr]
            for graph in (schedules.one_peer(lambdas), graphs.exponential(lambdas.size))
        )
        assert 0.055 < one_peer < 0.09
        assert 0.15 < dense < 0.21
        assert 2 < dense / one_peer < 3.1


def test_long_periods_are_looked_at_after_some_exchanges_and_all_steps_before_them() -> None:
    """Once more remainders were even than odd, and the disagreement after two local steps came out too low."""
    times = list(range(0, 301))
    assert moments.few_phases(times, 4, 1) == times
    assert moments.few_phases(times, 32, 4) != times
    for local_steps in (1, 2, 4):
        few = moments.few_phases(times, 40, local_steps)
        assert (few[0], few[-1]) == (0, 300)
        assert len({t % 40 for t in few}) <= moments.MOST_PHASES + local_steps
        steps = np.bincount(np.array(few[:-1]) % local_steps)
        assert steps.max() - steps.min() <= 0.1 * steps.max()


def test_every_algorithm_with_a_twin_on_a_network_has_a_system() -> None:
    assert set(systems.names()) == {GT, ED, "dsgd"}
    assert systems.named("allreduce") is None
    assert systems.named("base") is None
