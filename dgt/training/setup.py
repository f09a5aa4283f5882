"""From a config to the network it names: how many nodes, which weights, which graph, which rank is which node."""

from __future__ import annotations

import sys

import networkx as nx
import torch

from dgt import problems
from dgt.checks import ConfigError
from dgt.config import Config
from dgt.network import graphs, hosts, weights
from dgt.network.weights import Weights
from dgt.node import Node
from dgt.placement import Placement
from dgt.world import host_number, settle

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


def take_places(node: Node, graph: nx.Graph) -> None:
    """Renumber the ranks so that few edges run between hosts; rank 0 stays what it is. All ranks call it."""
    host_of_rank = node.gather(torch.tensor(host_number())).tolist()
    node_of_rank = torch.zeros(node.size, dtype=torch.int64)
    if node.is_main:
        placed = hosts.place(graph, host_of_rank)
        before, after = (hosts.edges_between(graph, order, host_of_rank) for order in (range(node.size), placed))
        edges, many = graph.number_of_edges(), len(set(host_of_rank))
        words = f"{after} of {edges} edges run between {many} hosts, {before} without it"
        print(f"dgt: placement=graph: {words}", file=sys.stderr, flush=True)
        node_of_rank += torch.tensor(placed)
    places = node.sum(node_of_rank).tolist()
    if places != list(range(node.size)):
        node.renumber(places[node.rank])
        settle(node, node.backend, node.device.type)
