"""From a config to the network it names: how many nodes, which weights, which graph. Pure, so any process may ask."""

from __future__ import annotations

import sys

import networkx as nx
import torch

from dgt import problems
from dgt.checks import ConfigError
from dgt.config import Config
from dgt.network import graphs, hosts, weights
from dgt.network.weights import Weights
from dgt.world import Node, host_number
from dgt.placement import Placement

DEFAULT_NODES = 16


def placed(node: Node, weights: Weights, graph: nx.Graph) -> tuple[Weights, nx.Graph]:
    """Weights and graph of the ranks, after choosing for each which node it is; all ranks call it."""
    host_of_rank = node.gather(torch.tensor(host_number())).tolist()
    nodes = hosts.place(graph, host_of_rank)
    if node.is_main:
        before, after = (hosts.edges_between(graph, order, host_of_rank) for order in (range(node.size), nodes))
        words = f"{len(set(host_of_rank))} hosts, {graph.number_of_edges()} edges, {after} of them between hosts"
        print(f"dgt: placement: {words} ({before} where rank i is node i)", file=sys.stderr, flush=True)
    node.members = nodes
    return weights[nodes], nx.relabel_nodes(graph, {name: rank for rank, name in enumerate(nodes)})


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
