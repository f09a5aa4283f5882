"""From a config to the network it names: how many nodes, which weights, which graph, which rank is which node."""

from __future__ import annotations

import sys

import networkx as nx
import torch

from dgt import problems
from dgt.config import Config
from dgt.errors import ConfigError
from dgt.network import graphs, hosts, topologies, weights
from dgt.network.mixing import edge_array
from dgt.network.weights import Weights
from dgt.processes.environment import host_number
from dgt.processes.join import settle
from dgt.processes.node import Node
from dgt.processes.placement import Placement

DEFAULT_NODES = 16


def network_of(config: Config, placement: Placement, *, as_drawn: bool = False) -> tuple[Weights, nx.Graph]:
    """Weights and graph of a run; raises when the launcher started another number of ranks.

    Fewer may be right where a run that has lost nodes is resumed, which `returning.settle_members` finds out.

    `as_drawn` leaves out `topology.optimize`, which takes its time, for those who only check or want the weights.
    """
    config.check_targets()
    launched = placement.size if placement.launcher != "alone" else None
    by_data = config.weights.name == "data_size"
    shards = len(config.problem.values.get("sizes") or []) if by_data and config.problem.target is None else 0
    nodes = config.nodes or weights.own_length(config.weights) or shards or launched or DEFAULT_NODES
    node_weights = weights.from_config(config.weights, nodes, problems.data_sizes(config, nodes) if by_data else None)
    may_be_left = config.resume != "none" and not config.warm_start and launched is not None and launched < nodes
    if launched is not None and launched != nodes and not may_be_left:
        raise ConfigError(f"world size {launched}: this network has {nodes} nodes; start {nodes} ranks, one per node")
    topology = topologies.as_drawn(config.topology) if as_drawn else config.topology
    return node_weights, graphs.from_config(topology, node_weights)


def shared_network(config: Config, node: Node) -> tuple[Weights, nx.Graph]:
    """The network of a run, on every rank; `topology.optimize` is done by rank 0 alone, which tells the others.

    64 ranks on two cores would spend a minute on what takes one of them a second; and they need not trust their
    processors to round alike.
    """
    node_weights, graph = network_of(config, node.placement, as_drawn=True)
    if not topologies.is_slow(config.topology):
        return node_weights, graph
    edges = torch.zeros(graph.number_of_edges(), 2, dtype=torch.int64)
    if node.is_main:
        edges += torch.from_numpy(edge_array(graphs.from_config(config.topology, node_weights)))
    shared = nx.empty_graph(node_weights.size)
    shared.add_edges_from(node.sum(edges).tolist())
    return node_weights, shared


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
