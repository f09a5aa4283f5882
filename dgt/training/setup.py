"""From a config to the network it names: how many nodes, which weights, which graph. Pure, so any process may ask."""

from __future__ import annotations

import networkx as nx

from dgt import problems
from dgt.checks import ConfigError
from dgt.config import Config
from dgt.network import graphs, weights
from dgt.network.weights import Weights
from dgt.placement import Placement

DEFAULT_NODES = 16


def network_of(config: Config, placement: Placement) -> tuple[Weights, nx.Graph]:
    """Weights and graph of a run; raises when the launcher started another number of ranks."""
    launched = placement.size if placement.launcher != "alone" else None
    by_data = config.weights.name == "data_size"
    shards = len(getattr(config.problem, "sizes", None) or []) if by_data else 0
    nodes = config.nodes or weights.own_length(config.weights) or shards or launched or DEFAULT_NODES
    node_weights = weights.from_config(config.weights, nodes, problems.data_sizes(config, nodes) if by_data else None)
    if launched is not None and launched != nodes:
        raise ConfigError(f"world size {launched}: this network has {nodes} nodes; start {nodes} ranks, one per node")
    return node_weights, graphs.from_config(config.topology, node_weights)
