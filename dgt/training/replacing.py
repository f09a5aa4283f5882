"""What a process needs to know that joins while the others train: in place of a lost one, or by `dgt join`.

    tell(node, facts)    rank 0, when the run begins
    told(node)           the newcomer, from the rendezvous store

Rank 0 decides some things at the start that all ranks hear then: the run directory, lr=auto, an optimized graph.
"""

from __future__ import annotations

import json
from typing import Any

import networkx as nx

from dgt.config import Config
from dgt.network.mixing import edge_array
from dgt.network.weights import Weights
from dgt.processes.node import Node

RUN, EDGES = "under-way/run", "under-way/edges"


def tell(config: Config, node: Node, facts: dict[str, Any]) -> None:
    """Leave what this start of the run has decided for those who come later."""
    if config.on_peer_loss != "stop" and node.is_main:
        node.store.set(RUN, json.dumps(facts))


def told(node: Node) -> dict[str, Any]:
    """What `tell` has left."""
    found: dict[str, Any] = json.loads(node.store.get(RUN))
    return found


def tell_graph(config: Config, node: Node, graph: nx.Graph) -> None:
    """Likewise the graph, where it took rank 0 its time to find it."""
    if config.on_peer_loss != "stop" and node.is_main:
        node.store.set(EDGES, json.dumps(edge_array(graph).tolist()))


def told_graph(node: Node, weights: Weights) -> nx.Graph:
    """What `tell_graph` has left."""
    graph = nx.empty_graph(weights.size)
    graph.add_edges_from(json.loads(node.store.get(EDGES)))
    return graph
