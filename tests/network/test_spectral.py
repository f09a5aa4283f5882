import networkx as nx
import numpy as np
import pytest

from dgt.network import graphs, weights
from dgt.network.gaps import gap_table
from dgt.network.mixing import mixing_matrix
from dgt.network.spectral import spectral_gap


def test_every_standard_cell_of_the_papers_table_to_the_printed_digits() -> None:
    standard = [row for row in gap_table() if row["tailored_for"] is None]
    assert len(standard) == 21
    for row in standard:
        digits = len(row["published"].partition(".")[2])
        assert f"{row['gap']:.{digits}f}" == row["published"], row


def test_tailored_graphs_favour_the_weighted_matrix() -> None:
    """The paper's finding: on each tailored graph W(lambda) has a much larger gap than W^ds."""
    rows = {(r["tailored_for"], r["weights"] == "uniform"): r["gap"] for r in gap_table() if r["tailored_for"]}
    for name in "ABCD":
        assert rows[name, False] > 1.5 * rows[name, True]


@pytest.mark.parametrize("topology", ["ring", "star", "complete", "exponential"])
def test_gap_equals_that_of_the_unsymmetrised_matrix(topology: str) -> None:
    vector = weights.named("B")
    graph: nx.Graph = getattr(graphs, topology)(16)
    moduli = np.sort(np.abs(np.linalg.eigvals(mixing_matrix(graph, vector, 0.3).toarray())))
    assert spectral_gap(graph, vector, 0.3) == pytest.approx(1 - moduli[-2], abs=1e-12)


def test_single_node_has_gap_one() -> None:
    assert spectral_gap(graphs.ring(1), np.ones(1)) == 1.0
