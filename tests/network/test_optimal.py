"""The fastest reversible chain against closed forms and brute force."""

import builtins
import itertools

import networkx as nx
import numpy as np
import pytest

from dgt.errors import ConfigError
from dgt.network import graphs, weights
from dgt.network.optimal import optimal_weights
from dgt.network.spectral import spectral_gap


def modulus(W: np.ndarray) -> float:
    return float(np.sort(np.abs(np.linalg.eigvals(W)))[-2])


def by_grid(graph: nx.Graph, vector: np.ndarray, steps: int) -> float:
    """The best of all flows on a grid, made into matrices one by one."""
    edges, best = list(graph.edges), 1.0
    choices = [np.linspace(0, min(vector[i], vector[j]), steps) for i, j in edges]
    for flows in itertools.product(*choices):
        Q = np.zeros((vector.size, vector.size))
        for (i, j), flow in zip(edges, flows, strict=True):
            Q[i, j] = Q[j, i] = flow
        own = vector - Q.sum(1)
        if (own >= -1e-12).all():
            best = min(best, modulus((Q + np.diag(own)) / vector[:, None]))
    return best


def test_complete_graph_mixes_in_one_step() -> None:
    """W = 1 lambda^T / n is feasible there, and all its other eigenvalues are 0."""
    for vector in (weights.uniform(5), weights.normalise([1, 2, 3, 4])):
        W, found = optimal_weights(graphs.complete(vector.size), vector)
        assert found.gap == pytest.approx(1, abs=1e-3)
        assert W.toarray() == pytest.approx(np.tile(vector / vector.size, (vector.size, 1)), abs=2e-3)


def test_three_nodes_on_a_path_have_gap_one_half() -> None:
    """Uniform weights, flow p on both edges: eigenvalues 1 - p and 1 - 3p, equal in modulus at p = 1/2."""
    assert optimal_weights(nx.path_graph(3), weights.uniform(3))[1].gap == pytest.approx(0.5, abs=1e-4)


def test_rings_are_as_known() -> None:
    """By symmetry one p: max(|1 - 2p + 2p cos(2 pi k/n)|) is least where k = 1 and k = n/2 balance."""
    n = 8
    slow, fast = 1 - np.cos(2 * np.pi / n), 2.0
    p = 1 / (slow + fast)
    gap = optimal_weights(graphs.ring(n), weights.uniform(n))[1].gap
    assert gap == pytest.approx(min(2 * p * slow, 1 - abs(1 - 2 * p * fast)), abs=1e-4)


@pytest.mark.parametrize(
    ("graph", "values"),
    [
        (nx.path_graph(2), [1, 3]),
        (nx.path_graph(3), [1, 2, 4]),
        (nx.cycle_graph(3), [1, 2, 3]),
        (nx.star_graph(2), [5, 1, 2]),
    ],
)
def test_no_grid_of_flows_has_a_better_one(graph: nx.Graph, values: list[float]) -> None:
    vector = weights.normalise(values)
    best = by_grid(graph, vector, 40)
    found = optimal_weights(graph, vector)[1]
    assert found.rho <= best + 1e-4
    assert found.rho >= best - 0.1  # the grid is coarse, not blind


@pytest.mark.parametrize("topology", ["ring", "grid", "exponential", "star"])
@pytest.mark.parametrize("name", ["A", "uniform"])
def test_the_matrix_is_exactly_feasible_and_never_below_the_local_rule(topology: str, name: str) -> None:
    vector = weights.uniform(16) if name == "uniform" else weights.named(name)
    graph = getattr(graphs, topology)(16)
    W, found = optimal_weights(graph, vector)
    full = W.toarray()
    flow = vector[:, None] * full
    assert (full >= 0).all()
    assert full.sum(1) == pytest.approx(np.ones(16), abs=1e-15)
    assert np.allclose(flow, flow.T, rtol=1e-14, atol=0)
    assert all(graph.has_edge(i, j) for i, j in zip(*np.nonzero(full), strict=True) if i != j)
    assert found.rho == pytest.approx(modulus(full), abs=1e-10)
    assert found.gap >= spectral_gap(graph, vector)


def test_without_the_extra_or_with_too_many_nodes_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name == "cvxpy":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"cvxpy is not installed; pip install 'dgt\[optimal\]'"):
        optimal_weights(graphs.ring(4), weights.uniform(4))
    with pytest.raises(ConfigError, match="optimal weights for 1000 nodes: at most"):
        optimal_weights(graphs.ring(1000), weights.uniform(1000))
