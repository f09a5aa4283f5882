import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgt.config import TOPOLOGIES, TopologyConfig
from dgt.errors import ConfigError
from dgt.network import graphs, schedules

BUILT = [name for name in TOPOLOGIES if name != "file"]


def build(name: str, n: int, seed: int = 0) -> nx.Graph:
    radius = 0.3 if n > 20 else 0.8
    config = TopologyConfig(name=name, seed=seed, radius=radius)
    return schedules.union_of(schedules.from_config(config, np.ones(n)))


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 16, 31])
def test_every_topology_is_connected_and_simple_at_any_size(name: str, n: int) -> None:
    graph = graphs.check(build(name, n), name)
    assert graph.number_of_nodes() == n


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["erdos_renyi", "geometric", "tailored"]), st.integers(1, 24), st.integers(0, 1000))
def test_random_graphs_are_connected_and_repeat_from_their_seed(name: str, n: int, seed: int) -> None:
    graph = build(name, n, seed)
    assert nx.is_connected(graph)
    assert set(graph.edges) == set(build(name, n, seed).edges)


@pytest.mark.parametrize(("n", "degree"), [(16, 7), (32, 9), (64, 11)])
def test_exponential_degrees_are_the_papers(n: int, degree: int) -> None:
    assert {d for _, d in graphs.exponential(n).degree} == {degree}


def test_grid_is_row_major_and_not_periodic() -> None:
    graph = graphs.grid(32)  # 4 x 8
    assert sorted(graph[0]) == [1, 8]
    assert sorted(graph[9]) == [1, 8, 10, 17]
    assert not graph.has_edge(7, 8)
    assert graph.number_of_edges() == nx.grid_2d_graph(4, 8).number_of_edges()
    assert nx.is_isomorphic(graphs.torus(32), nx.grid_2d_graph(4, 8, periodic=True))


def test_hopeless_random_graphs_end_with_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"topology.probability=0.001, nodes=30.*10 draws"):
        graphs.erdos_renyi(30, 0.001, tries=10)
    with pytest.raises(ConfigError, match=r"topology.radius=0.01, nodes=30"):
        graphs.geometric(30, 0.01, tries=10)


def test_edge_list_file(tmp_path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# a path\n0 1\n1,2\n\n2 1  # again\n")
    assert set(graphs.from_edge_list(path, 3).edges) == {(0, 1), (1, 2)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0 1\n2 3", "not connected"),
        ("0 1 5", "line 1: '0 1 5' is not an edge"),
        ("0 1\na b", "line 2"),
        ("0 4", "from 0 to 3"),
        ("1 1", "two different nodes"),
    ],
)
def test_bad_edge_lists_are_named(tmp_path, content: str, words: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        graphs.from_edge_list(path, 4)
    with pytest.raises(ConfigError, match="No such file"):
        graphs.from_edge_list(tmp_path / "none", 4)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (nx.DiGraph([(0, 1)]), "undirected"),
        (nx.Graph([(1, 2)]), r"0\.\.1"),
        (nx.Graph([(0, 0), (0, 1)]), "its own neighbour"),
        (nx.empty_graph(2), "no path joins node 0 and node 1"),
        (nx.empty_graph(0), "nodes must be"),
    ],
)
def test_users_graphs_are_checked(graph: nx.Graph, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        graphs.check(graph)


def test_geometric_graphs_are_those_of_all_distances() -> None:
    points = np.random.default_rng(3).random((300, 2))
    close = np.argwhere(np.triu(np.linalg.norm(points[:, None] - points[None], axis=-1) <= 0.2, k=1))
    assert [tuple(sorted(edge)) for edge in graphs.geometric(300, 0.2, seed=3, tries=1).edges] == [
        tuple(pair) for pair in close.tolist()
    ]


def test_large_erdos_renyi_graphs_draw_every_pair_alike() -> None:
    """Above 2,000 nodes pairs are skipped by geometric gaps: as many as expected, in all parts of the triangle."""
    n, p = 3000, 0.01
    ends = np.array(graphs.erdos_renyi(n, p, seed=5).edges)
    pairs = n * (n - 1) / 2
    assert abs(len(ends) - p * pairs) < 5 * np.sqrt(p * pairs)
    assert (ends[:, 0] != ends[:, 1]).all()
    low, high = ends.min(1), ends.max(1)
    for inside, share in ((high < n // 2, 1 / 4), (low >= n // 2, 1 / 4), ((low < n // 2) & (high >= n // 2), 1 / 2)):
        expected = share * p * pairs
        assert abs(inside.sum() - expected) < 5 * np.sqrt(expected)
    everything = graphs._sparse_pairs(50, 1.0, np.random.default_rng(0))
    assert set(map(tuple, everything.tolist())) == {(i, j) for j in range(50) for i in range(j)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: graphs.complete(100_000), r"complete, nodes=100000: some 5e\+09 edges do not fit"),
        (lambda: graphs.erdos_renyi(50_000, 0.5), "topology.probability=0.5, nodes=50000"),
        (lambda: graphs.geometric(100_000), "topology.radius=0.3, nodes=100000"),
        (lambda: graphs.tailored(np.ones(50_000), 40_000), "topology.avg_degree=40000, nodes=50000"),
    ],
)
def test_graphs_that_do_not_fit_are_refused_at_once(make, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
