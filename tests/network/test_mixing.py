import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgt.errors import ConfigError
from dgt.network import graphs, weights
from dgt.network.mixing import mixing_matrix, mixing_row, strategy

networks = st.tuples(
    st.integers(1, 20).flatmap(lambda n: st.lists(st.floats(0.05, 20), min_size=n, max_size=n)),
    st.sampled_from(["ring", "grid", "exponential", "star", "complete"]),
    st.floats(0.01, 0.99),
)


@settings(deadline=None)
@given(networks)
def test_stationarity_rows_and_detailed_balance(network: tuple[list[float], str, float]) -> None:
    values, topology, laziness = network
    vector = weights.normalise(values)
    graph = getattr(graphs, topology)(vector.size)
    W = mixing_matrix(graph, vector, laziness).toarray()
    assert np.allclose(W.sum(1), 1, atol=1e-14)
    assert np.allclose(vector @ W, vector, rtol=1e-12)
    flow = vector[:, None] * W
    assert np.allclose(flow, flow.T, rtol=1e-13, atol=0)
    assert (W >= 0).all()
    assert (np.diag(W) >= laziness - 1e-12).all()


@settings(deadline=None)
@given(networks)
def test_uniform_weights_give_a_symmetric_doubly_stochastic_matrix(
    network: tuple[list[float], str, float],
) -> None:
    values, topology, laziness = network
    W = mixing_matrix(getattr(graphs, topology)(len(values)), np.ones(len(values)), laziness).toarray()
    assert np.array_equal(W, W.T)
    assert np.allclose(W.sum(0), 1, atol=1e-14)


def test_row_is_the_papers_formula() -> None:
    """W_ij = (1-eps)/d_i min(1, lambda_j d_i / (lambda_i d_j)), computed here in the printed form."""
    row = mixing_row(0.7, 3, {4: (2.0, 2), 1: (0.2, 5), 9: (0.7, 1)}, 0.3)
    for j, (weight, degree) in {4: (2.0, 2), 1: (0.2, 5), 9: (0.7, 1)}.items():
        assert row.neighbours[j] == pytest.approx(0.7 / 3 * min(1, weight * 3 / (0.7 * degree)), rel=1e-15)
    assert list(row.neighbours) == [1, 4, 9]
    assert row.own + sum(row.neighbours.values()) == pytest.approx(1)


def test_single_node_keeps_everything() -> None:
    assert mixing_matrix(graphs.ring(1), np.ones(1)).toarray().tolist() == [[1.0]]


def test_strategies_put_lambda_in_one_place_only() -> None:
    vector = weights.named("A")
    one, two = strategy("I", vector), strategy("II", vector)
    assert np.array_equal(one.mixing_weights, np.ones(16))
    assert np.array_equal(one.gradient_scale, vector)
    assert np.array_equal(two.mixing_weights, vector)
    assert np.array_equal(two.gradient_scale, np.ones(16))
    # both aim at the same problem: pi_i G_i = lambda_i / n
    for plan in (one, two):
        assert plan.average_weights * plan.gradient_scale == pytest.approx(vector / 16)
    with pytest.raises(ConfigError, match=r"strategy=III: .*allowed: I, II"):
        strategy("III", vector)


@settings(deadline=None)
@given(networks)
def test_the_matrix_is_made_of_the_rows_to_the_last_bit(network: tuple[list[float], str, float]) -> None:
    values, topology, laziness = network
    vector = weights.normalise(values)
    graph = getattr(graphs, topology)(vector.size)
    W = mixing_matrix(graph, vector, laziness).toarray()
    for i in graph:
        told = {j: (float(vector[j]), graph.degree[j]) for j in graph[i]}
        row = mixing_row(float(vector[i]), graph.degree[i], told, laziness)
        assert {j: W[i, j] for j in graph[i]} == row.neighbours
        assert W[i, i] == row.own
