"""When Strategy II is proved faster: eta by brute force, conditions against eigenvalues of matrices made by hand."""

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from dgt.network import conditions, graphs, theory, weights
from dgt.network.mixing import mixing_matrix

networks = st.tuples(
    st.integers(4, 14).flatmap(lambda n: st.lists(st.floats(0.3, 3), min_size=n, max_size=n)),
    st.sampled_from(["ring", "grid", "exponential", "star", "complete"]),
)


def network(values: list[float], topology: str) -> tuple[nx.Graph, np.ndarray]:
    vector = weights.normalise(values)
    return getattr(graphs, topology)(vector.size), vector


def test_eta_is_the_supremum_of_the_ratio_found_numerically() -> None:
    least = scipy.optimize.minimize_scalar(conditions.phi_1, bounds=(0, 1), method="bounded", options={"xatol": 1e-10})
    assert pytest.approx(least.x, abs=1e-6) == conditions.RHO_STAR
    assert least.x == pytest.approx(0.601232, abs=1e-6)  # 0.605829 in the paper, where phi_1 is larger:
    assert conditions.phi_1(0.605829) > least.fun
    rho = np.linspace(1e-4, 1 - 1e-4, 1500)
    phi = conditions.phi_1(rho)
    ratios = np.where(rho[None, :] > rho[:, None], phi[None, :] / phi[:, None], 0)
    assert pytest.approx(ratios.max() ** 0.25 - 1, abs=1e-4) == conditions.ETA
    assert f"{conditions.ETA:.3f}" == "0.102"
    assert theory.B(0.4) == pytest.approx(2 * conditions.phi_1(0.4) / 0.6**4)


@given(st.floats(1, 30), st.floats(0.01, 0.98), st.floats(0.01, 0.98))
def test_the_spectral_condition_gives_smaller_constants_and_a_larger_step(
    most: float, plain: float, own: float
) -> None:
    """lambda_max^2 B(rho_J) >= B(rho_Lambda) and the same of A: what the theorem says follows."""
    vector = np.array([most, 1.0])
    if 1 - own >= conditions.R(vector) * (1 - plain):
        assert most**2 * theory.B(plain) >= theory.B(own) * (1 - 1e-9)
        assert most**2 * theory.A(plain) >= theory.A(own) * (1 - 1e-9)


@settings(deadline=None, max_examples=40)
@given(networks)
def test_the_least_rayleigh_quotient_is_that_of_the_dirichlet_form_made_edge_by_edge(drawn) -> None:
    graph, vector = network(*drawn)
    n = vector.size
    form = np.zeros((n, n))
    for i, j in graph.edges:
        flow = min(vector[i] / graph.degree[i], vector[j] / graph.degree[j])
        step = np.zeros(n)
        step[i], step[j] = 1, -1
        form += flow * np.outer(step, step)
    # in u = z / sqrt(lambda) the quotient is u^T form u / u^T D u
    assert conditions.least_rayleigh_quotient(graph, vector) == pytest.approx(
        scipy.linalg.eigh(form, np.diag(vector), eigvals_only=True)[1], rel=1e-6, abs=1e-10
    )


@settings(deadline=None, max_examples=40)
@given(networks)
def test_edge_condition_implies_rayleigh_implies_spectral_with_enough_laziness(drawn) -> None:
    graph, vector = network(*drawn)
    W, plain = (
        np.sort(np.linalg.eigvals(mixing_matrix(graph, w, 0.5).toarray()).real) for w in (vector, vector * 0 + 1)
    )
    holds = 1 - W[-2] >= conditions.R(vector) * (1 - plain[-2]) * (1 - 1e-9)
    if conditions.edge_condition(graph, vector):
        assert holds
    assert conditions.rayleigh_condition(graph, vector).holds == holds
    assert conditions.spectral_condition(graph, vector, 0.5).holds == holds


def test_edge_condition_names_the_worst_edge() -> None:
    vector = weights.named("A")
    graph = graphs.ring(16)
    found = conditions.edge_condition(graph, vector)
    # on a ring all degrees are 2: the lightest node is worst off
    assert found.left == pytest.approx(vector.min() / 2)
    assert found.right == pytest.approx(conditions.R(vector) * vector.max() / 2)
    assert not found
    assert conditions.edge_condition(graph, weights.uniform(16))


def test_degree_condition_is_the_edge_condition_of_proportional_degrees() -> None:
    """A star with as much weight in the middle as all around: degrees in proportion exactly."""
    for graph in (nx.star_graph(6), nx.complete_bipartite_graph(3, 4), nx.barbell_graph(4, 1), nx.path_graph(6)):
        vector = weights.normalise([graph.degree[i] for i in range(graph.number_of_nodes())])
        edge, degree = conditions.edge_condition(graph, vector), conditions.degree_condition(graph, vector)
        assert edge.holds == degree.holds
        assert edge.left / edge.right == pytest.approx(degree.left / degree.right)
    assert conditions.degree_condition(nx.star_graph(6), weights.normalise([6, 1, 1, 1, 1, 1, 1]))
    long_path = nx.barbell_graph(8, 4)
    assert not conditions.degree_condition(long_path, weights.normalise([long_path.degree[i] for i in range(20)]))


def test_step_condition_compares_the_gaps() -> None:
    vector, graph = weights.named("D"), graphs.exponential(64)
    found = conditions.step_condition(graph, vector)
    assert found.left == pytest.approx(1 - theory.rho_Lambda(graph, vector))
    assert found.right == pytest.approx((1 - theory.rho_J(graph)) / np.sqrt(vector.max()))


def test_the_step_condition_as_printed_does_not_suffice_without_eta() -> None:
    """phi_1 grows from its minimum to 1: at rho_J = 0.6, rho_Lambda = 0.9 Strategy I may take the larger step."""
    most = ((1 - 0.6) / (1 - 0.9)) ** 2  # 1 - rho_Lambda = lambda_max^-1/2 (1 - rho_J)
    one = theory.OnNetwork("I", 20, 0.6, most, 1.0, 0.1)
    two = theory.OnNetwork("II", 20, 0.9, 1.0, 1.0, 0.1)
    assert theory.step_limit(two, 1.0) < theory.step_limit(one, 1.0)
    enough = theory.OnNetwork("II", 20, 1 - 0.1 * (1 + conditions.ETA), 1.0, 1.0, 0.1)
    assert theory.step_limit(enough, 1.0) >= theory.step_limit(one, 1.0)
