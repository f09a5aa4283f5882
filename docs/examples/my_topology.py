from typing import Annotated

import networkx as nx

from dgt.config.settings import Meaning


def wheel(n: int, spokes: Annotated[int, Meaning("neighbours of node 0 besides its own two", low=0)] = 2) -> nx.Graph:
    """A ring whose node 0 has more neighbours."""
    graph = nx.cycle_graph(n)
    graph.add_edges_from((0, 2 + k) for k in range(min(spokes, n - 3)))
    return graph
