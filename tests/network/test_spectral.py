from typing import Any

import networkx as nx
import numpy as np
import pytest

from dgt.errors import ConfigError
from dgt.network import graphs, weights
from dgt.network.gaps import gap_table
from dgt.network.mixing import mixing_matrix
from dgt.network.spectral import spectral_gap, spectrum


@pytest.fixture(scope="module")
def table() -> list[dict[str, Any]]:
    return gap_table()


def test_every_standard_cell_of_the_papers_table_to_the_printed_digits(table: list[dict[str, Any]]) -> None:
    standard = [row for row in table if row["tailored_for"] is None]
    assert len(standard) == 21
    for row in standard:
        digits = len(row["published"].partition(".")[2])
        assert f"{row['gap']:.{digits}f}" == row["published"], row


def test_tailored_graphs_favour_the_weighted_matrix(table: list[dict[str, Any]]) -> None:
    """The paper's finding: on each tailored graph W(lambda) has a much larger gap than W^ds."""
    rows = {(r["tailored_for"], r["weights"] == "uniform"): r for r in table if r["tailored_for"]}
    for name in "ABCD":
        assert rows[name, False]["gap"] > 1.5 * rows[name, True]["gap"]
        assert rows[name, False]["optimized"] > 2 * rows[name, True]["optimized"]


@pytest.mark.parametrize("topology", ["ring", "star", "complete", "exponential"])
def test_gap_equals_that_of_the_unsymmetrised_matrix(topology: str) -> None:
    vector = weights.named("B")
    graph: nx.Graph = getattr(graphs, topology)(16)
    moduli = np.sort(np.abs(np.linalg.eigvals(mixing_matrix(graph, vector, 0.3).toarray())))
    assert spectral_gap(graph, vector, 0.3) == pytest.approx(1 - moduli[-2], abs=1e-12)


def test_single_node_has_gap_one() -> None:
    assert spectral_gap(graphs.ring(1), np.ones(1)) == 1.0


@pytest.mark.parametrize("n", [1500, 20_000])
def test_rings_and_tori_have_their_closed_forms_at_any_size(n: int) -> None:
    """sigma = eps + (1 - eps) cos(2 pi k / n), and the mean of two such on a torus."""
    ring = spectrum(graphs.ring(n), np.ones(n))
    assert ring.exact
    assert ring.gap == pytest.approx(0.7 * 2 * np.sin(np.pi / n) ** 2, rel=1e-5)
    assert ring.last == pytest.approx(-0.4, abs=1e-6)
    rows, columns = next((r, n // r) for r in range(int(n**0.5), 0, -1) if n % r == 0)
    torus = spectrum(graphs.torus(n), np.ones(n))
    assert torus.gap == pytest.approx(0.7 * np.sin(np.pi / max(rows, columns)) ** 2, rel=1e-6)


def sparse_cases() -> list[nx.Graph]:
    two = nx.disjoint_union(nx.random_regular_graph(6, 550, seed=1), nx.random_regular_graph(6, 550, seed=2))
    two.add_edge(0, 1000)
    lollipop = nx.lollipop_graph(60, 1040)
    tree = nx.random_labeled_tree(1100, seed=3)
    regular = nx.random_regular_graph(4, 1100, seed=4)
    cases = [two, lollipop, tree, regular, graphs.grid(1100), graphs.exponential(1100), graphs.star(1100)]
    return [*cases, nx.complete_bipartite_graph(20, 1080), graphs.complete(1100)]


@pytest.mark.parametrize("graph", sparse_cases(), ids=range(9))
@pytest.mark.parametrize("laziness", [0.3, 0.05])
def test_sparse_and_dense_agree_on_every_kind_of_graph(
    graph: nx.Graph, laziness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = weights.normalise(np.random.default_rng(0).lognormal(0, 0.7, 1100))
    sparse = spectrum(graph, vector, laziness)
    monkeypatch.setattr("dgt.network.spectral.DENSE", 2000)
    dense = spectrum(graph, vector, laziness)
    assert sparse.exact
    assert sparse.gap == pytest.approx(dense.gap, rel=1e-5)
    assert sparse.second == pytest.approx(dense.second, abs=1e-6)


def test_a_budget_that_is_used_up_gives_a_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgt.network.spectral.MOST_PRODUCTS", 50)
    monkeypatch.setattr("dgt.network.spectral.MOST_FACTOR_WORK", 0)
    found = spectrum(graphs.ring(1500), np.ones(1500))
    true = 0.7 * 2 * np.sin(np.pi / 1500) ** 2
    assert not found.exact
    assert true < found.gap < 0.1
    with pytest.raises(ConfigError, match="spectral gap of 1500 nodes: at most"):
        spectral_gap(graphs.ring(1500), np.ones(1500))


@pytest.mark.parametrize("name", ["A", "C"])
def test_the_table_shows_the_plain_draw_and_the_optimized_graph(name: str, table: list[dict[str, Any]]) -> None:
    rows = [row for row in table if row["tailored_for"] == name]
    assert [row["weights"] for row in rows] == [name, "uniform"]
    vector = weights.named(name)
    for row, judged in zip(rows, (vector, weights.uniform(vector.size)), strict=True):
        plain, better = (graphs.tailored(vector, optimize=choice) for choice in (False, True))
        assert row["gap"] == pytest.approx(spectral_gap(plain, judged))
        assert row["optimized"] == pytest.approx(spectral_gap(better, judged))
        assert row["factor"] == pytest.approx(row["optimized"] / float(row["published"]))
