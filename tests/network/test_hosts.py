"""Few edges between hosts, never more than without."""

from __future__ import annotations

import networkx as nx
import pytest

from dgt.network import graphs
from dgt.network.hosts import edges_between, place

TWO = [0] * 8 + [1] * 8
TURNS = [rank % 4 for rank in range(16)]  # ranks dealt out to four hosts one by one


@pytest.mark.parametrize(
    ("graph", "hosts", "best"),
    [
        (graphs.ring(16), TWO, 2),
        (graphs.ring(16), TURNS, 4),
        (graphs.grid(16), TWO, 4),
        (graphs.grid(16), TURNS, 8),
        (graphs.complete(16), TWO, 64),
    ],
)
def test_the_cut_is_as_small_as_it_can_be(graph: nx.Graph, hosts: list[int], best: int) -> None:
    nodes = place(graph, hosts)
    assert sorted(nodes) == list(range(16))
    assert nodes[0] == 0
    assert edges_between(graph, nodes, hosts) == best


@pytest.mark.parametrize("seed", range(10))
def test_it_is_never_worse_than_rank_is_node(seed: int) -> None:
    graph = nx.random_regular_graph(4, 24, seed=seed)
    hosts = [rank % 3 for rank in range(24)]
    before = edges_between(graph, range(24), hosts)
    assert edges_between(graph, place(graph, hosts), hosts) <= before


def test_groups_that_were_scattered_are_found_again() -> None:
    """Four cliques of four in a ring, their nodes dealt out over four hosts."""
    graph = nx.relabel_nodes(nx.connected_caveman_graph(4, 4), {k: (k * 5) % 16 for k in range(16)})
    assert edges_between(graph, place(graph, TURNS), TURNS) == 4


def test_uneven_hosts_and_one_host() -> None:
    assert (
        edges_between(graphs.ring(10), place(graphs.ring(10), [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]), [0] * 3 + [1] * 7) == 2
    )
    assert sorted(place(graphs.ring(5), [7] * 5)) == list(range(5))
